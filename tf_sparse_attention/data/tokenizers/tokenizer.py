"""Base class of the tokenizers, and helpers for text and ids as TensorFlow tensors."""

import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from tf_sparse_attention.types import Config, Tensor


class Tokenizer:
    """Base class of the tokenizers, which convert text to ids and back.

    Id 0 is padding and the start token before the first token of a document; id 1 ends a document. Text never has these
    ids. Python text is converted to arrays, tensors to tensors. A subclass defines `vocabulary_size`, `tokenize` and
    `detokenize` (or the methods that they call) and, if its constructor has arguments, `get_config`.
    """

    pad_id = 0
    start_id = 0
    end_id = 1
    num_special = 2
    is_lossless = True  # whether `detokenize` restores every text exactly
    needs_tensorflow_text = False  # whether tensorflow-text is needed, in a SavedModel too
    trackable: Any = None  # object whose tables a SavedModel must track, or None

    # Defined by subclasses. Arguments are already checked.
    _tokenize_text: Callable[[str | bytes], np.ndarray]
    _tokenize_tensor: Callable[[Tensor], Tensor]
    _detokenize_ids: Callable[[np.ndarray], str]
    _detokenize_tensor: Callable[[Tensor], Tensor]

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, including the special ids."""
        raise NotImplementedError(f"{type(self).__name__} must define `vocabulary_size`.")

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Convert text to ids, without special ids.

        Args:
            text: `str`, `bytes` (UTF-8, except for `ByteTokenizer`), or `tf.string` tensor () or (B,).

        Returns:
            int32 ids: NumPy array (T,) for Python text, tensor (T,) for a scalar tensor, ragged tensor (B, None) for a
            tensor (B,). Empty text has no ids.

        Raises:
            ValueError: If `text` has another type or rank, or is not UTF-8, such as a lone surrogate.
        """
        if is_tensor(text):
            if text.dtype.name != "string" or text.shape.rank not in (0, 1):
                raise ValueError(f"`text` must be a string tensor of rank 0 or 1. Received: text={text!r}.")
            return self._tokenize_tensor(text)
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be str, bytes or a string tensor. Received: text={text!r}.")
        return self._tokenize_text(text)

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Convert ids to text. Special ids are left out.

        Args:
            ids: sequence or array (T,) of integers, or integer tensor (T,) or (B, T), dense or ragged.

        Returns:
            `str` for Python ids, `tf.string` tensor () or (B,) for tensors. In tensors, ids outside the vocabulary are
            left out, because a check would slow down the graph.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers in the vocabulary.
        """
        if not is_tensor(ids):
            return self._detokenize_ids(self.checked_ids(ids))
        if not ids.dtype.is_integer or ids.shape.rank not in (1, 2):
            raise ValueError(f"`ids` must be an integer tensor of rank 1 or 2. Received: ids={ids}.")
        return self._detokenize_tensor(ids)

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
    """Convert `str` or `bytes` to `str`, or raise a `ValueError` unless UTF-8 can encode it."""
    try:
        if isinstance(text, bytes):
            return text.decode("utf-8")
        text.encode("utf-8")
    except UnicodeError as error:
        kind = "bytes" if isinstance(text, bytes) else "characters"
        raise ValueError(f"`text` must be UTF-8. Received: {len(text)} {kind}, where {error}.") from error
    return text


def is_tensor(value: Any) -> TypeGuard[Any]:
    """Return whether a value is a TensorFlow tensor, dense or ragged."""
    # If TensorFlow is not imported, the value is not a tensor: Python text does not need the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))


def look_up(pieces: list[bytes], ids: Tensor) -> Tensor:
    """Return the piece of each id of a tensor, dense or ragged. The last piece is for all ids out of range."""
    import tensorflow as tf

    outside = len(pieces) - 1

    def take(values):
        inside = (values >= 0) & (values < outside)
        return tf.gather(tf.constant(pieces), tf.where(inside, values, tf.cast(outside, values.dtype)))

    return tf.ragged.map_flat_values(take, ids) if isinstance(ids, tf.RaggedTensor) else take(ids)


def read_lines(path: str | os.PathLike) -> list[str]:
    """Read the lines of a vocabulary file, or raise a `ValueError` if it is missing, empty or not UTF-8."""
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"`path` must be a vocabulary file. Received: path={path}.")
    try:
        content = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"`path` must be a vocabulary file in UTF-8. Received: {path.name}, where {error}.") from error
    if not content:
        raise ValueError(f"`path` must be a vocabulary file with one piece per line. Received: empty {path.name}.")
    # Not `splitlines`: subwords can have other characters that it treats as line breaks.
    return content.removesuffix("\n").split("\n")
