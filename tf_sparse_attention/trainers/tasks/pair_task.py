"""What tasks of pairs have in common: documents that are read and documents that are written, by one tokenizer."""

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import ml_collections
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import components, exporting, sample_sources, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import with_overrides
from tf_sparse_attention.trainers.tasks import pair_scores
from tf_sparse_attention.trainers.tasks.encoder_decoder import make_encoder_decoder
from tf_sparse_attention.trainers.tasks.parts import TrainingData
from tf_sparse_attention.trainers.tasks.settings import SAMPLING, check_settings
from tf_sparse_attention.trainers.tasks.text_task import TOKENIZER, TextTask

LINE = "This is a line of text."

# Settings that all tasks of pairs need, and those that they read.
FIELDS = {"data": ("source_field", "target_field")}
DATA = (*TOKENIZER, *FIELDS["data"], "unit", "target_end")
MODEL = (
    *("cross_attention", "encoder_attention", "num_encoder_layers", "share_embeddings"),
    *("preset", "reproduce_reference", "tie_embeddings", "use_output_bias"),
)
TRAIN = ("generated_targets", "generated_beams", "label_smoothing")
GENERATE = ("prompt", "length", *SAMPLING)


class PairTask(TextTask):
    """Base of the tasks of pairs; see `trainers.tasks.registry`.

    With `config.model.cross_attention` the model is an encoder-decoder. Without it one language model reads a source
    and then the target, its only tokens that are scored.
    """

    @classmethod
    def training_texts(cls, config: ml_collections.ConfigDict) -> tuple[str, Iterator[bytes]]:
        """Returns the name of the texts of a configuration, and the documents of its training split, of both sides.

        Raises:
            ValueError: If it does not name the two fields.
        """
        check_settings(config, FIELDS, {})
        pairs = components.make_pair_source(config)
        both = zip(*(side.documents(config.data.train_split) for side in pairs), strict=True)
        return pairs.name, itertools.chain.from_iterable(both)

    @property
    def has_encoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(self.config.model.cross_attention)

    @functools.cached_property
    def pairs(self) -> tsa.data.PairSource:
        """The two texts that `config.data` names, opened once: a file of them is read to know its fingerprint."""
        return components.make_pair_source(self.config)

    def open_buckets(self, split: str) -> tsa.data.PairBuckets:
        """Returns the pairs of a split by length."""
        data = self.config.data
        source, target = (tsa.data.open_token_store(side, self.tokenizer, split) for side in self.pairs)
        sizes = data.batch_size, data.sequence_length
        return tsa.data.PairBuckets(source, target, *sizes, as_prefix=not self.has_encoder)

    def open_data(self) -> TrainingData:
        """Returns the pairs of the training split."""
        data, pairs = self.config.data, self.pairs
        batches = self.open_buckets(data.train_split).training_batches(self.config.seed)
        tokens_per_step = (2 if self.has_encoder else 1) * data.batch_size * data.sequence_length
        return TrainingData(pairs, pairs.fingerprint, batches, tokens_per_step)

    def make_model(self) -> keras.Model:
        """Returns a `SequenceToSequence`, or a `LanguageModel`."""
        make = make_encoder_decoder if self.has_encoder else components.make_model
        return make(self.config, self.tokenizer.vocabulary_size)

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a token, of labels smoothed as `config.train.label_smoothing` says."""
        return tsa.models.language_model_loss(self.config.train.label_smoothing)

    def make_validation(self, model: Any, execution: dict[str, Any]) -> pair_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        buckets = self.open_buckets(self.config.data.validation_split)
        return pair_scores.Validation(self, model, buckets, execution)

    def write_targets(self, model: Any, sources: Sequence[np.ndarray], strategy: Any) -> list[str]:
        """Returns the targets that a model writes of the ids of sources, with their ends, as text."""
        length, tokenizer = self.config.generate.length, self.tokenizer
        if self.has_encoder:
            return model.generate(sources, length, strategy, tokenizer=tokenizer)
        longest = max(map(len, sources)) + length
        found = model.generate(sources, longest, strategy, stop_token_ids=tokenizer.end_id)
        return [
            tokenizer.detokenize(ids[len(source) : len(source) + length])
            for source, ids in zip(sources, found, strict=True)
        ]

    def make_sample_source(self, folder: str | os.PathLike) -> sample_sources.LocalModelSource:
        """Returns what writes targets of prompts with the model of a work folder."""
        kind = sample_sources.TranslationSource if self.has_encoder else sample_sources.PrefixSource
        return kind(workdir.load_model(folder), self.tokenizer, self.config.generate.to_dict())

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
            Dictionary: "split", "data", "pairs" that were scored and those "left_out" as too long, "empty_sources" and
            "empty_targets" of the split, which are scored too, "bytes" and "tokens" of the targets, "nats",
            "bits_per_byte" and "perplexity" (per token), the same of "without_source", the scores of the task's
            `scores_of` if targets were generated, with "generated_path", and "path", the file they were written to.

        Raises:
            ValueError: If there is no trained model or no such split, all targets are empty, or the task ignores a
                setting of `overrides`.
        """
        config = with_overrides(self.config, overrides)
        return pair_scores.evaluate(type(self)(config, self.tokenizer), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return pair_scores.as_text(scores)

    def scores_of(self, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns the scores of generated targets by name, see `GeneratedTargets`, and again of sources unchanged."""
        raise NotImplementedError

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Writes the SavedModel of a work folder into it and tries it.

        That of an encoder-decoder writes what `export_sequence_to_sequence` does, that of a language model what
        `export_language_model` does, whose prompts are sources.
        """
        if not self.has_encoder:
            return exporting.export(folder, jit_compile, weight_dtype)
        saved_model = workdir.open_workdir(folder) / exporting.SAVED_MODEL
        model: Any = workdir.load_model(folder)
        path = tsa.export.export_sequence_to_sequence(
            model, saved_model, self.tokenizer, jit_compile=jit_compile, weight_dtype=weight_dtype
        )
        settings = {"max_length": 20, "temperature": 0.0, "top_p": 1.0, "seed": 0}
        found = exporting.run_alone(path, "generate", {"text": [LINE], **settings})
        return {"path": str(path), "line": LINE, **found, "proof": f"{LINE!r} becomes {found['text']!r}"}
