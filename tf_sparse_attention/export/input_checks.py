"""Checks of export arguments, and assertions about the inputs of signatures."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.remote_files import as_path, raise_remote_errors
from tf_sparse_attention.types import Tensor

Condition: TypeAlias = tuple[Tensor, str, Tensor]  # condition, message and received value of an assertion


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


def check_kind(model: keras.Model, kinds: tuple[type, ...], what: str = "A SavedModel") -> None:
    """Raise a `ValueError` unless `model` is of one of `kinds` and the backend is TensorFlow."""
    check_backend(what)
    if not isinstance(model, kinds):
        names = " or ".join(f"`{kind.__name__}`" for kind in kinds)
        raise ValueError(f"`model` must be a {names}. Received: model={model!r}.")


def check_language_model(model: LanguageModel) -> None:
    """Raise a `ValueError` unless `model` is a causal `LanguageModel` and the backend is TensorFlow."""
    check_kind(model, (LanguageModel,))
    if not model.backbone.causal:
        raise ValueError(
            "`model` must be causal, so that scores are likelihoods. Received: a backbone with causal=False."
        )


def check_codec(name: str, codec: Any, kind: Any, vocabulary_size: int | None) -> None:
    """Raise a `ValueError` unless a tokenizer or codec is a `kind` of at most `vocabulary_size` ids (None: any)."""
    if not isinstance(codec, kind):
        raise ValueError(f"`{name}` must be a `tf_sparse_attention.data.{kind.__name__}`. Received: {codec!r}.")
    if vocabulary_size is not None and codec.vocabulary_size > vocabulary_size:
        raise ValueError(
            f"`{name}` must not have more ids than the model. "
            f"Received: {codec.vocabulary_size} ids and a model with {vocabulary_size}."
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


def require(value: Tensor, *conditions: Condition) -> Tensor:
    """Return `value` after assertions that the conditions are true."""
    assertions = [
        tf.debugging.Assert(true, [f"{message} Received:", received]) for true, message, received in conditions
    ]
    with tf.control_dependencies(assertions):
        return tf.identity(value)


def same_rows(names: tuple[str, str], first: Tensor, second: Tensor) -> Condition:
    """Return the condition that two inputs, strings (B,), have the same number of rows."""
    message = f"`{names[0]}` and `{names[1]}` must have the same number of rows."
    return tf.size(first) == tf.size(second), message, tf.stack([tf.size(first), tf.size(second)])


def valid_lengths(name: str, lengths: Tensor, rows: Tensor, minimum: int) -> list[Condition]:
    """Return the conditions that `lengths` (B,) are from `minimum` to T, for `rows` (B, T, ...)."""
    are_valid = tf.reduce_all((lengths >= minimum) & (lengths <= tf.shape(rows)[1]))
    return [
        (tf.size(lengths) == tf.shape(rows)[0], f"`{name}` must have one number per row.", tf.size(lengths)),
        (are_valid, f"`{name}` must be from {minimum} to the length of the rows.", lengths),
    ]
