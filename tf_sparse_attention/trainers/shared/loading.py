"""Loads models from files."""

import os
import pathlib
import zipfile
from typing import Any

import keras
from absl import logging

from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.trainers.shared import damage


def load_model(name: str, path: str | os.PathLike) -> Any:
    """Returns the model or layer in a file, not compiled.

    Args:
        name: name of the setting in error messages.
        path: a `.keras` file.

    Raises:
        ValueError: If there is no such file, or it is no `.keras` file, not as it was written, or of a model that this
            program cannot make.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`{name}` must be a file NAME.keras. Received: {path}, which is not there.")
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f'`{name}` must be a file that `model.save("NAME.keras")` wrote, whole. Received: {path}, which is '
            f"{file.stat().st_size} bytes of something else, or was cut off while it was copied."
        )
    try:
        with zipfile.ZipFile(file) as archive:
            wrong = archive.testzip()  # Keras reads some of it without looking at the checksums
        if wrong is not None:
            raise ValueError(f"another content of {wrong}")
        return keras.models.load_model(file, compile=False)
    except (OSError, *damage.ERRORS) as error:
        raise ValueError(
            f"`{name}` must be a file of a model that can be read: restore it from a copy, or write it again. "
            f"Received: {path}, with {damage.reason_of(error)}."
        ) from error


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
