"""Base class of the tokenizers, and helpers for text and ids as TensorFlow tensors."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.types import Config, Tensor


class Tokenizer:
    """Base class of the tokenizers, which convert text to ids and back.

    Id 0 is padding and the start token before the first token of a document; id 1 ends a document. Text never has these
    ids. Python text is converted to arrays, tensors to tensors. A subclass defines `tokenize`, `detokenize`,
    `vocabulary_size` and, if its constructor has arguments, `get_config`.
    """

    pad_id = 0
    start_id = 0
    end_id = 1
    num_special = 2
    is_lossless = True  # whether `detokenize` restores every text exactly
    needs_tensorflow_text = False  # whether tensorflow-text is needed, in a SavedModel too
    trackable: Any = None  # object whose tables a SavedModel must track, or None

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, including the special ids."""
        raise NotImplementedError(f"{type(self).__name__} must define `vocabulary_size`.")

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Convert text to ids, without special ids."""
        raise NotImplementedError(f"{type(self).__name__} must define `tokenize`.")

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Convert ids to text. Special ids are left out."""
        raise NotImplementedError(f"{type(self).__name__} must define `detokenize`.")

    def detokenize_bytes(self, ids: Sequence[int]) -> bytes:
        """Convert Python ids to UTF-8 `bytes`; see `detokenize`."""
        return self.detokenize(ids).encode("utf-8")

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Return the longest prefix of the decoded text that later ids cannot change.

        An incomplete UTF-8 character, at most three U+FFFD, is left out.
        """
        text = self.detokenize(ids)
        complete = text.rstrip("\ufffd")
        return text if len(text) - len(complete) > 3 else complete

    def checked_ids(self, ids: Sequence[int]) -> np.ndarray:
        """Return Python ids as an array (T,), without the special ids.

        Raises:
            ValueError: If `ids` is not a flat sequence of integers in the vocabulary.
        """
        array = np.asarray(ids)
        if array.size == 0 and array.ndim == 1:
            return np.zeros(0, np.int32)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"`ids` must be a flat sequence of integers. Received: ids={ids!r}.")
        if array.min() < 0 or array.max() >= self.vocabulary_size:
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}). Received: ids from {array.min()} to {array.max()}."
            )
        return array[array >= self.num_special]

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> "Tokenizer":
        """Create a tokenizer from its config."""
        return cls(**config)


def as_text(text: str | bytes) -> str:
    """Convert `str` or UTF-8 `bytes` to `str`.

    Raises:
        ValueError: If `text` has another type, is not UTF-8, or has a lone surrogate.
    """
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"`text` must be UTF-8. Received: {len(text)} bytes, where {error}.") from error
    if not isinstance(text, str):
        raise ValueError(f"`text` must be str, bytes or a string tensor. Received: text={text!r}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"`text` must be UTF-8. Received: {len(text)} characters, where {error}.") from error
    return text


def check_string_tensor(text: Tensor) -> None:
    """Raise a `ValueError` unless a tensor has strings and rank 0 or 1."""
    import tensorflow as tf

    if text.dtype != tf.string or text.shape.rank not in (0, 1):
        raise ValueError(f"`text` must be a string tensor of rank 0 or 1. Received: text={text}.")


def check_id_tensor(ids: Tensor) -> None:
    """Raise a `ValueError` unless a tensor has integers and rank 1 or 2."""
    if not ids.dtype.is_integer or ids.shape.rank not in (1, 2):
        raise ValueError(f"`ids` must be an integer tensor of rank 1 or 2. Received: ids={ids}.")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a TensorFlow tensor, dense or ragged."""
    # If TensorFlow is not imported, the value is not a tensor: Python text does not need the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))


def look_up(pieces: list[bytes], ids: Tensor) -> Tensor:
    """Return the piece of each id, in the shape of `ids`.

    Args:
        pieces: list of `bytes`, by id; the last one is for all ids out of range.
        ids: int tensor, dense or ragged.
    """
    import tensorflow as tf

    outside = len(pieces) - 1

    def take(values):
        inside = (values >= 0) & (values < outside)
        return tf.gather(tf.constant(pieces), tf.where(inside, values, tf.cast(outside, values.dtype)))

    return tf.ragged.map_flat_values(take, ids) if isinstance(ids, tf.RaggedTensor) else take(ids)
