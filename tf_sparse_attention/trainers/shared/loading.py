"""Loading of models from files, and one-line error messages for damaged files."""

import contextlib
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import keras
from absl import logging

from tf_sparse_attention.models import LanguageModel

# Errors that readers of JSON, zip archives, arrays and models raise for damaged content.
DAMAGE_ERRORS = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError),
    RuntimeError,  # with `NotImplementedError`: encryption, or an unknown compression
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


@contextlib.contextmanager
def convert_errors(path: pathlib.Path) -> Iterator[None]:
    """Convert `DAMAGE_ERRORS` in a block that reads a file of a run directory to a `ValueError` that names it."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise ValueError(error_message(path, short_reason(error))) from error


def short_reason(error: Exception) -> str:
    """Return the first line of an error message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"no {lines[0]}" if isinstance(error, KeyError) else lines[0].rstrip(".")


def error_message(path: pathlib.Path, reason: str) -> str:
    """Return the error message for a damaged file of a run directory."""
    return (
        f"`workdir` must hold an intact {path.name}: restore it from a copy, or start a new run. "
        f"Received: {path}, with {reason}."
    )


def load_model(name: str, path: str | os.PathLike) -> Any:
    """Load a model or layer from a `.keras` file without compiling it. `name`: setting in error messages."""
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`{name}` must be a file NAME.keras. Received: {path}, which does not exist.")
    if not zipfile.is_zipfile(file):
        raise ValueError(
            f'`{name}` must be a complete file of `model.save("NAME.keras")`. Received: {path}, which has '
            f"{file.stat().st_size} bytes and another format, or is truncated."
        )
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # Keras does not verify all checksums
        if damaged is not None:
            raise ValueError(f"a damaged {damaged}")
        return keras.models.load_model(file, compile=False)
    except (OSError, *DAMAGE_ERRORS) as error:
        raise ValueError(
            f"`{name}` must be a readable model file: restore it from a copy, or save it again. "
            f"Received: {path}, with {short_reason(error)}."
        ) from error


def load_language_model(name: str, path: str | os.PathLike, vocabulary_size: int) -> keras.Model:
    """Load a language model from a file, see `load_model`. Log a warning if it has more ids than the tokenizer."""
    model = load_model(name, path)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"`{name}` must hold a `LanguageModel`. Received: a {type(model).__name__} in {path}.")
    num_unused = model.backbone.vocabulary_size - vocabulary_size
    if num_unused < 0:
        raise ValueError(
            "`tokenizer` must be the tokenizer of the model's training. "
            f"Received: {vocabulary_size} ids, a model with {model.backbone.vocabulary_size} ids."
        )
    if num_unused:
        logging.warning(
            "The model has %d ids more than the tokenizer. Use the tokenizer that the model was trained with.",
            num_unused,
        )
    return model
