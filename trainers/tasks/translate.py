"""The task of translation: whole documents of one field of a data set to those of another, by an encoder-decoder."""

import functools
import os
from typing import Any

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from trainers.shared import components, evaluation, sample_sources, workdir
from trainers.shared.overrides import overridable_settings
from trainers.tasks import translate_scores
from trainers.tasks.parts import TrainingData
from trainers.tasks.text_task import TextTask

# Settings of `config.model` that are those of both sides.
OF_BOTH: tuple[str, ...] = (
    "num_layers",
    "hidden_dim",
    "embedding_dim",
    "intermediate_dim",
    "activation",
    "num_local_layers",
    "norm",
)
OF_BOTH += ("dropout", "embedding_dropout", "activation_dropout", "layer_norm_epsilon", "remat")
# Settings that a translation needs, and those that it does not have.
NEEDED = {
    "data": ("source_field", "target_field"),
    "model": ("num_layers", "hidden_dim", "attention", "cross_attention"),
}
FOREIGN = {
    "data": ("mask_rate", "text_feature"),
    "model": ("preset", "start_from", "memory_length", "grid", "initialization"),
}


class Task(TextTask):
    """Translation, with one tokenizer for sources and targets; see `trainers.tasks.registry`."""

    def __init__(self, config: ml_collections.ConfigDict, tokenizer: Any = None) -> None:
        _check(config)
        super().__init__(config, tokenizer)

    @functools.cached_property
    def pairs(self) -> tsa.data.PairSource:
        """The two texts that `config.data` names, opened once: a file of them is read to know its fingerprint."""
        given = components.set_values(self.config.data)
        options = {name: given[name] for name in ("tfds", "path", "local_dir", "data_dir") if name in given}
        return tsa.data.open_pairs(given["source_field"], given["target_field"], **options)

    def open_stores(self, split: str) -> list[tsa.data.TokenStore]:
        """Returns the token stores of the sources and of the targets of a split."""
        return [tsa.data.open_token_store(side, self.tokenizer, split) for side in self.pairs]

    def open_data(self) -> TrainingData:
        """Returns the pairs of the training split."""
        data, pairs = self.config.data, self.pairs
        source, target = self.open_stores(data.train_split)
        batches = tsa.data.PairBatches(source, target, data.batch_size, data.sequence_length, self.config.seed)
        return TrainingData(pairs, pairs.fingerprint, batches, 2 * data.batch_size * data.sequence_length)

    def make_model(self) -> keras.Model:
        """Returns a `SequenceToSequence` with the vocabulary of the tokenizer on both sides."""
        settings, dtype = components.set_values(self.config.model), self.config.train.dtype
        common = {name: settings[name] for name in OF_BOTH if name in settings}
        common |= {"seed": self.config.seed, "dtype": dtype}
        encoder = dict(common) | {"attention": settings["encoder_attention"] or settings["attention"]}
        encoder["num_layers"] = settings.get("num_encoder_layers", settings["num_layers"])
        vocabulary_size = self.tokenizer.vocabulary_size
        decoder = Backbone(
            vocabulary_size,
            **common,
            attention=settings["attention"],
            cross_attention=settings["cross_attention"],
            token_dropout=settings.get("token_dropout", 0.0),
        )
        head = {name: settings[name] for name in ("tie_embeddings", "use_output_bias")}
        return SequenceToSequence(
            Backbone(None if settings["share_embeddings"] else vocabulary_size, **encoder, causal=False),
            LanguageModel(decoder, dtype=dtype, **head),
            dtype=dtype,
        )

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a token, of labels smoothed as `config.train.label_smoothing` says."""
        return tsa.models.language_model_loss(self.config.train.label_smoothing)

    def make_validation(self, model: Any, execution: dict[str, Any]) -> translate_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        return translate_scores.Validation(self, model, self.open_stores(self.config.data.validation_split), execution)

    def make_sample_source(self, folder: str | os.PathLike) -> sample_sources.TranslationSource:
        """Returns what translates prompts with the model of a work folder."""
        return sample_sources.TranslationSource(
            workdir.load_model(folder), self.tokenizer, self.config.generate.to_dict()
        )

    def evaluate(
        self, folder: str | os.PathLike, split: str, overrides: ml_collections.ConfigDict | None = None
    ) -> dict[str, Any]:
        """Scores every target of a split, once given its source and once without it, and writes the scores.

        An evaluation that was killed resumes when it is started again.

        Args:
            folder: the work folder.
            split: name of the split, or a part of one in the syntax of TFDS.
            overrides: `overrides.overridable_settings()` with the settings to override. None: none.

        Returns:
            Dictionary: "split", "data", "pairs" that were scored and those "left_out" as too long, "bytes" and "tokens"
            of the targets, "nats", "bits_per_byte" and "perplexity" (per token), the same of "without_source", and
            "path", the file they were written to.
        """
        config = evaluation.with_overrides(self.config, overrides or overridable_settings())
        return translate_scores.evaluate(type(self)(config, self.tokenizer), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return translate_scores.as_text(scores)


def _check(config):
    """Raises a `ValueError` for settings that a translation lacks, or does not have."""
    for needed, settings in ((True, NEEDED), (False, FOREIGN)):
        for section, names in settings.items():
            for name in names:
                value = config[section][name]
                if bool(value) != needed:
                    wanted = "given" if needed else "unset"
                    raise ValueError(
                        f"`config.{section}.{name}` must be {wanted} for task=translate. Received: {name}={value!r}."
                    )
