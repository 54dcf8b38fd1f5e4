"""The task of translation: whole documents of one field of a data set to those of another, by an encoder-decoder."""

import os
from typing import Any, Self

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.models import Backbone, LanguageModel, SequenceToSequence
from trainers.shared import components, evaluation, tokenizers, workdir
from trainers.shared.overrides import overridable_settings
from trainers.tasks import translate_scores
from trainers.tasks.parts import TrainingData

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


class Task:
    """Translation; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        tokenizer: of sources and targets. None: the one that `config.data` names.
    """

    def __init__(self, config: ml_collections.ConfigDict, tokenizer: Any = None) -> None:
        _check(config)
        data = config.data
        self.config = config
        self.tokenizer = tokenizers.make_tokenizer(data.tokenizer, data.vocabulary) if tokenizer is None else tokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        return cls(workdir.load_config(folder), workdir.load_tokenizer(folder))

    def open_pairs(self) -> tsa.data.PairSource:
        """Returns the two texts that `config.data` names."""
        names = {"tfds": "tfds", "path": "path", "local_dir": "local_dir", "data_dir": "data_dir"}
        given = components.set_values(self.config.data)
        options = {ours: given[name] for name, ours in names.items() if name in given}
        return tsa.data.open_pairs(given["source_field"], given["target_field"], **options)

    def open_stores(self, split: str) -> list[tsa.data.TokenStore]:
        """Returns the token stores of the sources and of the targets of a split."""
        return [tsa.data.open_token_store(side, self.tokenizer, split) for side in self.open_pairs()]

    def open_data(self) -> TrainingData:
        """Returns the pairs of the training split."""
        data, pairs = self.config.data, self.open_pairs()
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

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer into a work folder."""
        workdir.save_tokenizer(folder, self.tokenizer)

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has another tokenizer."""
        workdir.check_tokenizer(folder, self.tokenizer)


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
