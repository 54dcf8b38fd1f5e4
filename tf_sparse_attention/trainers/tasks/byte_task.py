"""What tasks of bytes that are no text have in common: images and sound, and a codec kept in the work folder."""

import os
import pathlib
from typing import Any, ClassVar, Self

import keras
import ml_collections

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import components, damage, exporting, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import with_overrides
from tf_sparse_attention.trainers.tasks import byte_scores
from tf_sparse_attention.trainers.tasks.settings import Names

CODEC = "codec.json"


class ByteTask:
    """Base of the tasks of bytes that are no text; see `trainers.tasks.registry`.

    A subclass has `items`, what errors call them; `codec_class`; `settings`, the names of those that it reads, by
    section; `found_in`, what `config.data.path` may be; `scores_class`, a `byte_scores.Validation`; `source`;
    `make_codec()`, that of the data; `open_split(split)`, what is scored of it; and for the export `write_saved_model`
    and `plain_item()`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        codec: maps items to ids and back. None: that of the data, opened when it is needed.
    """

    items: ClassVar[str]
    codec_class: ClassVar[Any]
    settings: ClassVar[Names]
    found_in: ClassVar[str]
    scores_class: ClassVar[Any]
    source: Any

    def __init__(self, config: ml_collections.ConfigDict, codec: Any = None) -> None:
        if not config.model.causal:
            raise ValueError(f"`config.model.causal` must be True for task={config.task}. Received: causal=False.")
        if config.data.tfds is None and config.data.path is None:
            raise ValueError(
                f"`config.data.path` must be {self.found_in}, or `config.data.tfds` the name of a data set of TFDS, "
                f"for task={config.task}. Received: neither."
            )
        self.config, self._codec = config, codec

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        saved = workdir.read_json(folder, CODEC)
        with damage.named(workdir.open_workdir(folder) / CODEC):
            codec = cls.codec_class.from_config(saved)
        return cls(workdir.load_config(folder), codec)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the codec into a work folder."""
        workdir.save_json(folder, CODEC, self.codec.get_config())

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has items of another kind, or in another order."""
        path = workdir.open_workdir(folder) / CODEC
        if path.exists() and type(self).load(folder).codec.get_config() != self.codec.get_config():
            raise ValueError(
                f"`config.data` must have {self.items} as those of the checkpoint in the work folder; start a new run "
                f"with another --workdir. Received: {self.codec.get_config()}."
            )

    @property
    def codec(self) -> Any:
        """The codec of the items."""
        if self._codec is None:
            self._codec = self.make_codec()
        return self._codec

    def make_codec(self) -> Any:
        """Returns the codec of the data."""
        raise NotImplementedError

    def open_split(self, split: str) -> Any:
        """Returns what is scored of a split."""
        raise NotImplementedError

    def source_options(self, *names: str) -> dict[str, Any]:
        """Returns the settings of `config.data` that name the data, and others, where they are given."""
        given = components.set_values(self.config.data)
        return {name: given[name] for name in ("tfds", "path", "local_dir", "data_dir", *names) if name in given}

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel` of 257 ids, see `components.make_model`."""
        return components.make_model(self.config, self.codec.vocabulary_size)

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a byte."""
        return tsa.models.language_model_loss()

    def make_metrics(self) -> list[keras.metrics.Metric]:
        """Returns no metric: the loss is reported as Keras has it."""
        return []

    def make_validation(self, model: Any, execution: dict[str, Any]) -> byte_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        return self.scores_class(self, model, self.open_split(self.config.data.validation_split), execution)

    def evaluate(
        self, folder: str | os.PathLike, split: str, overrides: ml_collections.ConfigDict | None = None
    ) -> dict[str, Any]:
        """Scores every byte of a split once, given those before it, and writes the scores.

        An evaluation that was killed resumes when it is started again.

        Args:
            folder: the work folder.
            split: name of the split, or a part of one in the syntax of TFDS.
            overrides: `overrides.overridable_settings()` with the settings to override. None: none.

        Returns:
            Dictionary, see `byte_scores.evaluate`, and "path", the file it was written to.

        Raises:
            ValueError: If there is no trained model or no such split, or the task ignores a setting of `overrides`.
        """
        config = with_overrides(self.config, overrides)
        return byte_scores.evaluate(type(self)(config, self._codec), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return byte_scores.as_text(scores, self.items, self.scores_class)

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Writes the SavedModel of a work folder into it, and scores something plain with it."""
        saved_model = workdir.open_workdir(folder) / exporting.SAVED_MODEL
        path = self.write_saved_model(workdir.load_model(folder), saved_model, jit_compile, weight_dtype)
        plain, inputs = self.plain_item()
        found = exporting.run_alone(path, "score", inputs)
        metric = self.scores_class.metric
        proof = f"{plain} has {found[metric]:.4f} {byte_scores.LABELS[metric]}"
        return {"path": str(path), **found, "proof": proof}

    def write_saved_model(
        self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None
    ) -> pathlib.Path:
        """Writes a SavedModel of a model of the run, with a signature `score`, and returns its path."""
        raise NotImplementedError

    def plain_item(self) -> tuple[str, dict[str, Any]]:
        """Returns what an exported model is tried with, in words and as the inputs of `score`, plain data."""
        raise NotImplementedError
