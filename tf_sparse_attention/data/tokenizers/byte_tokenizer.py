"""Text as its UTF-8 bytes: a vocabulary of 258 ids that needs no training and no extra package."""

import codecs
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.tokenizers.tensors import is_tensor, look_up
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, check_id_tensor, check_string_tensor
from tf_sparse_attention.types import Tensor

NUM_SPECIAL = Tokenizer.num_special
NUM_BYTES = 256


class ByteTokenizer(Tokenizer):
    """Maps text to its UTF-8 bytes, byte b to id b + 2.

    Id 0 is padding and also the start token that the model reads before the first token of a document; id 1 ends a
    document. The vocabulary has 258 ids. Used for byte-level language models (enwik8, the demo of this library), whose
    loss in nats / ln 2 is bits per byte.

    Python text gives NumPy arrays. Tensors are handled with core TensorFlow ops alone, so the same tokenizer works
    inside `tf.data` and in a SavedModel that is served without this library and without tensorflow-text.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.tokenize("Hi")
    array([ 74, 107], dtype=int32)
    >>> tokenizer.detokenize([0, 74, 107, 1])
    'Hi'
    """

    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Turns text into ids; no special id is added.

        Args:
            text: `str`, `bytes`, or a `tf.string` tensor of rank 0 or 1.

        Returns:
            int32 ids: a NumPy array (T,) for Python text, a tensor (T,) for a scalar tensor, and a ragged tensor
            (B, None) for a tensor (B,). Empty text gives no ids.

        Raises:
            ValueError: If `text` is of another type or rank, or a `str` that UTF-8 cannot encode (a lone surrogate).
        """
        if isinstance(text, str):
            text = text.encode("utf-8")
        if isinstance(text, bytes):
            return np.frombuffer(text, np.uint8).astype(np.int32) + NUM_SPECIAL
        if is_tensor(text):
            return _tokenize_tensor(text)
        raise ValueError(f"`text` must be str, bytes or a string tensor. Received: text={text!r}.")

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Turns ids back into text, leaving out the special ids.

        Args:
            ids: for Python text a sequence or array (T,) of integers; otherwise an integer tensor (T,) or (B, T), dense
                or ragged.

        Returns:
            `str` for Python ids, where bytes that are not valid UTF-8 (a character cut in two) become U+FFFD; a
            `tf.string` tensor, () or (B,), with the bytes as they are for tensors. In a tensor an id outside the
            vocabulary gives nothing, since a graph cannot raise cheaply.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers in [0, 258).
        """
        if is_tensor(ids):
            return _detokenize_tensor(ids)
        return self.detokenize_bytes(ids).decode("utf-8", errors="replace")

    def detokenize_bytes(self, ids: Sequence[int]) -> bytes:
        """Turns ids back into the exact bytes, leaving out the special ids.

        Args:
            ids: sequence or array (T,) of integers.

        Returns:
            `bytes`, valid UTF-8 only if the ids were cut between characters.

        Raises:
            ValueError: If `ids` is not a flat sequence of integers in [0, 258).
        """
        return (self.checked_ids(ids) - NUM_SPECIAL).astype(np.uint8).tobytes()

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Returns the longest prefix of the text of Python ids that further ids cannot change, `str`."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.detokenize_bytes(ids))


def _tokenize_tensor(text):
    import tensorflow as tf

    check_string_tensor(text)
    # decode_raw wants rows of one length: the rows are joined, decoded at once and cut again.
    joined = text if text.shape.rank == 0 else tf.strings.reduce_join(text)
    ids = tf.cast(tf.io.decode_raw(joined, tf.uint8), tf.int32) + NUM_SPECIAL
    if text.shape.rank == 0:
        return ids
    return tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text, unit="BYTE"), validate=False)


def _detokenize_tensor(ids):
    import tensorflow as tf

    check_id_tensor(ids)
    # One string for each id; the entry behind the vocabulary stands for every id outside it.
    pieces = [b""] * NUM_SPECIAL + [bytes([byte]) for byte in range(NUM_BYTES)] + [b""]
    return tf.strings.reduce_join(look_up(pieces, ids), axis=-1)
