"""Checks of export arguments, and graph assertions on the inputs of signatures."""

import math
import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.remote_files import as_path, raise_remote_errors
from tf_sparse_attention.types import Tensor

MAX_ROWS = 2**12


def check_backend(what: str) -> None:
    """Raise a `ValueError` unless the backend is TensorFlow. The message starts with `what`."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{what} can be written on the TensorFlow backend only. Save the model with `model.save('model.keras')`, "
            "then load and export the file in a process with KERAS_BACKEND=tensorflow. "
            f"Received: backend={keras.backend.backend()!r}."
        )


def check_output_folder(path: str | os.PathLike, names: set[str], required: str | None = None) -> Any:
    """Return the path of an output folder. Raise a `ValueError` unless it is new, empty or an earlier export.

    Args:
        path: the folder, local or remote.
        names: names of the files and folders that an export writes.
        required: name of a file that every export has. Default: None.
    """
    folder = as_path(path)
    with raise_remote_errors(folder):
        found = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        is_file = folder.exists() and not folder.is_dir()
    others = sorted(found - names)
    if is_file or others or (found and required is not None and required not in found):
        listed = f", which has {others[0]}" if others else ""
        raise ValueError(
            f"`path` must be a new folder, an empty folder, or an earlier export. Received: path={path}{listed}."
        )
    return folder


def check_kind(model: keras.Model, what: str, kinds: tuple[type, ...]) -> None:
    """Raise a `ValueError` unless `model` is of one of `kinds` and the backend is TensorFlow."""
    check_backend(what)
    if not isinstance(model, kinds):
        names = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        raise ValueError(f"`model` must be a {names}. Received: model={model!r}.")


def check_causal(model: LanguageModel) -> None:
    """Raise a `ValueError` unless `model` is a causal `LanguageModel` and the backend is TensorFlow."""
    check_kind(model, "A SavedModel", (LanguageModel,))
    if not model.backbone.causal:
        raise ValueError(
            "`model` must be causal, so that scores are likelihoods. Received: a backbone with causal=False."
        )


def check_tokenizer(name: str, tokenizer: Tokenizer, vocabulary_size: int | None) -> None:
    """Raise a `ValueError` unless `tokenizer` is a `Tokenizer` of at most `vocabulary_size` ids (None: any)."""
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"`{name}` must be a tokenizer of `tf_sparse_attention.data`. Received: {tokenizer!r}.")
    if vocabulary_size is not None and tokenizer.vocabulary_size > vocabulary_size:
        raise ValueError(
            f"`{name}` must not have more ids than the model. Received: a tokenizer with "
            f"{tokenizer.vocabulary_size} ids and a model with {vocabulary_size}."
        )


def check_codec(codec: Any, kind: Any, model: LanguageModel) -> None:
    """Raise a `ValueError` unless `codec` is a `kind` and `model` is a causal model with the codec's ids."""
    check_causal(model)
    if not isinstance(codec, kind):
        raise ValueError(f"`codec` must be an `{kind.__name__}`. Received: {codec!r}.")
    if model.backbone.vocabulary_size < codec.vocabulary_size:
        raise ValueError(
            f"`model` must have the {codec.vocabulary_size} ids of the codec. "
            f"Received: {model.backbone.vocabulary_size}."
        )


def check_length(name: str, length: int, num_positions: int | None) -> None:
    """Raise a `ValueError` unless `length` is positive and at most `num_positions` (None: no limit)."""
    checks.check_count(name, length)
    if num_positions is not None and length > num_positions:
        raise ValueError(
            f"`{name}` must be at most the {num_positions} positions of the model. Received: {name}={length}."
        )


def check_labels(labels: Sequence[str], num_labels: int) -> None:
    """Raise a `ValueError` unless `labels` are `num_labels` strings."""
    is_strings = not isinstance(labels, str) and all(isinstance(label, str) for label in labels)
    if not is_strings or len(labels) != num_labels:
        raise ValueError(f"`labels` must be {num_labels} strings, one per class of the model. Received: {labels!r}.")


def assert_all(conditions: Sequence[tuple[Tensor, str, Tensor]]) -> list[tf.Operation]:
    """Return graph assertions for tuples (condition, message, received value)."""
    return [tf.debugging.Assert(condition, [f"{message} Received:", value]) for condition, message, value in conditions]


def assert_same_rows(names: tuple[str, str], first: Tensor, second: Tensor) -> list[tf.Operation]:
    """Return the assertion that two inputs, strings (B,), have the same number of rows."""
    message = f"`{names[0]}` and `{names[1]}` must have the same number of rows."
    return assert_all([(tf.size(first) == tf.size(second), message, tf.stack([tf.size(first), tf.size(second)]))])


def assert_row_lengths(name: str, lengths: Tensor, rows: Tensor, minimum: int) -> list[tf.Operation]:
    """Return the assertions that `lengths` (B,) are from `minimum` to T, for `rows` (B, T, ...)."""
    is_valid = tf.reduce_all((lengths >= minimum) & (lengths <= tf.shape(rows)[1]))
    return assert_all(
        [
            (tf.size(lengths) == tf.shape(rows)[0], f"`{name}` must have one number per row.", tf.size(lengths)),
            (is_valid, f"`{name}` must be from {minimum} to the length of the rows.", lengths),
        ]
    )


def assert_max_length(max_length: Tensor, lengths: Tensor, limit: int) -> list[tf.Operation]:
    """Return the assertions that `max_length` is at least 1, at least each length (B,), and at most `limit`."""
    longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
    return assert_all(
        [
            (
                max_length >= longest,
                "`max_length` must be positive and at least the length of each prompt.",
                max_length,
            ),
            (max_length <= limit, f"`max_length` must be at most {limit}.", max_length),
        ]
    )


def assert_settings(name: str, num_rows: Tensor, temperature: Tensor, top_p: Tensor) -> list[tf.Operation]:
    """Return the assertions for the number of rows of the input `name`, and for the sampling settings."""
    is_temperature = (temperature >= 0) & (temperature < math.inf)
    return assert_all(
        [
            (num_rows <= MAX_ROWS, f"`{name}` must have at most {MAX_ROWS} rows.", num_rows),
            (is_temperature, "`temperature` must be a number of at least 0.", temperature),
            ((top_p > 0) & (top_p <= 1), "`top_p` must be a number in (0, 1].", top_p),
        ]
    )
