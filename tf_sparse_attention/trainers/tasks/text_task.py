"""What tasks of text have in common: a configuration and a tokenizer, kept in the work folder."""

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import keras
import ml_collections

from tf_sparse_attention.trainers.shared import components, sample_sources, sampling, tokenizers, workdir
from tf_sparse_attention.trainers.tasks.parts import Generated, Request
from tf_sparse_attention.trainers.tasks.settings import Names

TOKENIZER = ("tokenizer", "vocabulary")  # settings of `config.data`


class TextTask:
    """Base of the tasks of text; see `trainers.tasks.registry`.

    A subclass has `settings`, the names of those that it reads.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        tokenizer: of all text. None: the one that `config.data` names.
    """

    settings: ClassVar[Names]

    def __init__(self, config: ml_collections.ConfigDict, tokenizer: Any = None) -> None:
        data = config.data
        self.config = config
        self.tokenizer = tokenizers.make_tokenizer(data.tokenizer, data.vocabulary) if tokenizer is None else tokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        return cls(workdir.load_config(folder), workdir.load_tokenizer(folder))

    @classmethod
    def training_texts(cls, config: ml_collections.ConfigDict) -> tuple[str, Iterator[bytes]]:
        """Returns the name of the text of a configuration, and the documents of its training split.

        A class method, since the tokenizer of a task may be one that is still to be found in these texts.
        """
        source = components.make_text_source(config)
        return source.name, source.documents(config.data.train_split)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer into a work folder."""
        workdir.save_tokenizer(folder, self.tokenizer)

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has another tokenizer."""
        workdir.check_tokenizer(folder, self.tokenizer)

    def make_metrics(self) -> list[keras.metrics.Metric]:
        """Returns no metric: the loss is reported as Keras has it."""
        return []

    def make_sample_source(self, folder: str | os.PathLike) -> sample_sources.LocalModelSource:
        """Returns what continues prompts with the model of a work folder, that of the newest checkpoint if need be."""
        return sample_sources.LocalModelSource(
            workdir.load_model(folder), self.tokenizer, self.config.generate.to_dict()
        )

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Generates text with the model of a work folder, and writes it there; see `sampling.generate_text`."""
        path = workdir.open_workdir(folder) / sampling.SAMPLES if request.path is None else request.path
        return sampling.generate_text(self.make_sample_source(folder), request._replace(path=path), show)
