"""Byte tokenizer: 258 ids, without training and without extra packages."""

import codecs
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.tokenizers.tokenizer import (
    Tokenizer,
    check_id_tensor,
    check_string_tensor,
    is_tensor,
    look_up,
)
from tf_sparse_attention.types import Tensor

NUM_SPECIAL = Tokenizer.num_special
NUM_BYTES = 256


class ByteTokenizer(Tokenizer):
    """Tokenizer of UTF-8 bytes: byte b has the id b + 2.

    Id 0 is padding and the start token before the first token of a document; id 1 ends a document. The vocabulary has
    258 ids. Bits per byte are the loss of a byte-level language model, in nats per token, divided by ln 2.

    Python text is converted to NumPy arrays. Tensors need only core TensorFlow ops, so the tokenizer works inside
    `tf.data`, and in a SavedModel without this library or tensorflow-text.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.tokenize("Hi")
    array([ 74, 107], dtype=int32)
    >>> tokenizer.detokenize([0, 74, 107, 1])
    'Hi'
    """

    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Convert text to ids, without special ids.

        Args:
            text: `str`, `bytes`, or `tf.string` tensor () or (B,).

        Returns:
            int32 ids: NumPy array (T,) for Python text, tensor (T,) for a scalar tensor, ragged tensor (B, None) for a
            tensor (B,). Empty text has no ids.

        Raises:
            ValueError: If `text` has another type or rank, or is a `str` that UTF-8 cannot encode (a lone surrogate).
        """
        if isinstance(text, str):
            text = text.encode("utf-8")
        if isinstance(text, bytes):
            return np.frombuffer(text, np.uint8).astype(np.int32) + NUM_SPECIAL
        if is_tensor(text):
            return _tokenize_tensor(text)
        raise ValueError(f"`text` must be str, bytes or a string tensor. Received: text={text!r}.")

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Convert ids to text. Special ids are left out.

        Args:
            ids: sequence or array (T,) of integers, or integer tensor (T,) or (B, T), dense or ragged.

        Returns:
            `str` for Python ids; bytes that are not valid UTF-8 (part of a character) become U+FFFD. `tf.string` tensor
            () or (B,) with the exact bytes for tensors. In tensors, ids outside the vocabulary are left out, because a
            check would slow down the graph.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers in [0, 258).
        """
        if is_tensor(ids):
            return _detokenize_tensor(ids)
        return self.detokenize_bytes(ids).decode("utf-8", errors="replace")

    def detokenize_bytes(self, ids: Sequence[int]) -> bytes:
        """Convert Python ids to the exact bytes. Special ids are left out.

        Args:
            ids: sequence or array (T,) of integers.

        Returns:
            `bytes`; they can begin or end inside a UTF-8 character.

        Raises:
            ValueError: If `ids` is not a flat sequence of integers in [0, 258).
        """
        return (self.checked_ids(ids) - NUM_SPECIAL).astype(np.uint8).tobytes()

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Return the longest prefix of the decoded text that later ids cannot change."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.detokenize_bytes(ids))


def _tokenize_tensor(text):
    import tensorflow as tf

    check_string_tensor(text)
    # decode_raw needs rows of equal length: join all rows, decode once, and split.
    joined = text if text.shape.rank == 0 else tf.strings.reduce_join(text)
    ids = tf.cast(tf.io.decode_raw(joined, tf.uint8), tf.int32) + NUM_SPECIAL
    if text.shape.rank == 0:
        return ids
    return tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text, unit="BYTE"), validate=False)


def _detokenize_tensor(ids):
    import tensorflow as tf

    check_id_tensor(ids)
    # One string per id. The last entry is for all ids outside the vocabulary.
    pieces = [b""] * NUM_SPECIAL + [bytes([byte]) for byte in range(NUM_BYTES)] + [b""]
    return tf.strings.reduce_join(look_up(pieces, ids), axis=-1)
