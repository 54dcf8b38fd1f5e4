"""Loads models from files."""

import os
import pathlib
import zipfile
from typing import Any

import keras
from absl import logging

from tf_sparse_attention.models import LanguageModel


def load_model(name: str, path: str | os.PathLike) -> Any:
    """Returns the model or layer in a file, not compiled.

    Args:
        name: name of the setting in error messages.
        path: a `.keras` file.

    Raises:
        ValueError: If there is no such file, or it is no complete `.keras` file.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`{name}` must be a file NAME.keras. Received: {path}, which is not there.")
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f'`{name}` must be a file that `model.save("NAME.keras")` wrote, whole. Received: {path}, which is '
            f"{file.stat().st_size} bytes of something else, or was cut off while it was copied."
        )
    return keras.models.load_model(file, compile=False)


def load_language_model(name: str, path: str | os.PathLike, vocabulary_size: int) -> keras.Model:
    """Returns the language model in a file, not compiled. A larger vocabulary than the tokenizer's gives a warning.

    Args:
        name, path: see `load_model`.
        vocabulary_size: ids of the tokenizer.

    Raises:
        ValueError: If `load_model` raises it, or the file holds no `LanguageModel`, or one of a smaller vocabulary.
    """
    model = load_model(name, path)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`{name}` must hold a `LanguageModel`. Received: a {type(model).__name__} in {path}.")
    num_unused = model.backbone.vocabulary_size - vocabulary_size
    if num_unused < 0:
        raise ValueError(
            "The tokenizer must have no more ids than the model, and be the one it was trained with. "
            f"Received: {vocabulary_size} ids, a model of {model.backbone.vocabulary_size}."
        )
    if num_unused:
        logging.warning(
            "The model has %d ids more than the tokenizer: is it the one it was trained with?",
            num_unused,
        )
    return model
