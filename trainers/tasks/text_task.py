"""What tasks of text have in common: a configuration and a tokenizer, kept in the work folder."""

import os
from typing import Any, Self

import ml_collections

from trainers.shared import tokenizers, workdir


class TextTask:
    """Base of the tasks of text; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        tokenizer: of all text. None: the one that `config.data` names.
    """

    def __init__(self, config: ml_collections.ConfigDict, tokenizer: Any = None) -> None:
        data = config.data
        self.config = config
        self.tokenizer = tokenizers.make_tokenizer(data.tokenizer, data.vocabulary) if tokenizer is None else tokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        return cls(workdir.load_config(folder), workdir.load_tokenizer(folder))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer into a work folder."""
        workdir.save_tokenizer(folder, self.tokenizer)

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has another tokenizer."""
        workdir.check_tokenizer(folder, self.tokenizer)
