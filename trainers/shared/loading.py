"""Loads language models from files."""

import os
import pathlib
import zipfile

import keras

from tf_sparse_attention.models import LanguageModel


def load_language_model(name: str, path: str | os.PathLike, vocabulary_size: int) -> keras.Model:
    """Returns the language model in a file, not compiled.

    Args:
        name: name of the setting in error messages.
        path: a `.keras` file.
        vocabulary_size: ids of the tokenizer.

    Raises:
        ValueError: If there is no such file, or it holds no `LanguageModel`, or the vocabulary of the model is smaller.
    """
    model = keras.models.load_model(check_file(name, path), compile=False)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`{name}` must hold a `LanguageModel`. Received: a {type(model).__name__} in {path}.")
    if model.backbone.vocabulary_size < vocabulary_size:
        raise ValueError(
            "The tokenizer must have no more ids than the model, and be the one it was trained with. "
            f"Received: {vocabulary_size} ids, a model of {model.backbone.vocabulary_size}."
        )
    return model


def check_file(name: str, path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a model in a file.

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
    return file
