"""Base class of the tokenizers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.types import Config, Tensor


class Tokenizer:
    """Base of the tokenizers: text to ids and back.

    Id 0 is padding and the start token that a model reads before the first token of a document, id 1 ends a document;
    text never maps to either. A tokenizer has `tokenize`, `detokenize`, `vocabulary_size`, `get_config` and
    `from_config`; Python text gives NumPy arrays, tensors give tensors.
    """

    pad_id = 0
    start_id = 0
    end_id = 1
    num_special = 2
    is_lossless = True  # whether any text comes back as it was
    needs_tensorflow_text = False  # whether its operations are those of tensorflow-text, in a SavedModel too
    trackable: Any = None  # the object, if any, that a SavedModel has to hold so that the operations find their tables

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones included."""
        raise NotImplementedError(f"{type(self).__name__} must define `vocabulary_size`.")

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Turns text into ids; no special id is added."""
        raise NotImplementedError(f"{type(self).__name__} must define `tokenize`.")

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Turns ids back into text, leaving out the special ids."""
        raise NotImplementedError(f"{type(self).__name__} must define `detokenize`.")

    def detokenize_bytes(self, ids: Sequence[int]) -> bytes:
        """Turns Python ids into text as UTF-8 `bytes`; see `detokenize`."""
        return self.detokenize(ids).encode("utf-8")

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Returns the longest prefix of the text of Python ids that further ids cannot change, `str`.

        An incomplete UTF-8 character, at most three bytes shown as U+FFFD, is left out.
        """
        text = self.detokenize(ids)
        complete = text.rstrip("\ufffd")
        return text if len(text) - len(complete) > 3 else complete

    def checked_ids(self, ids: Sequence[int]) -> np.ndarray:
        """Returns Python ids as an array (T,) without the special ones.

        Raises:
            ValueError: If they are not a flat sequence of integers of the vocabulary.
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
        """Returns the arguments of the constructor: none, unless a subclass says otherwise."""
        return {}

    @classmethod
    def from_config(cls, config: Config) -> "Tokenizer":
        """Makes the tokenizer that `get_config` describes."""
        return cls(**config)


def as_text(text: str | bytes) -> str:
    """Returns `str` or UTF-8 `bytes` as `str`.

    Raises:
        ValueError: If it is of another type or not UTF-8; half of a pair of UTF-16 is not.
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
    """Raises a `ValueError` unless a tensor is of strings and of rank 0 or 1."""
    import tensorflow as tf

    if text.dtype != tf.string or text.shape.rank not in (0, 1):
        raise ValueError(f"`text` must be a string tensor of rank 0 or 1. Received: text={text}.")


def check_id_tensor(ids: Tensor) -> None:
    """Raises a `ValueError` unless a tensor is of integers and of rank 1 or 2."""
    if not ids.dtype.is_integer or ids.shape.rank not in (1, 2):
        raise ValueError(f"`ids` must be an integer tensor of rank 1 or 2. Received: ids={ids}.")
