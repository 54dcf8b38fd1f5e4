"""Byte tokenizer: 258 ids, without training and without extra packages."""

import codecs
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, look_up

NUM_SPECIAL = Tokenizer.num_special
NUM_BYTES = 256


class ByteTokenizer(Tokenizer):
    """Tokenizer of UTF-8 bytes: byte b has the id b + 2.

    Id 0 is padding and the start token before the first token of a document; id 1 ends a document. The vocabulary has
    258 ids. Bits per byte are the loss of a byte-level language model, in nats per token, divided by ln 2.

    Python text is converted to NumPy arrays. Tensors need only core TensorFlow ops, so the tokenizer works inside
    `tf.data`, and in a SavedModel without this library or tensorflow-text. `tokenize` accepts any `bytes`. `detokenize`
    replaces bytes that are not valid UTF-8 (part of a character) by U+FFFD in `str`, and keeps them in tensors.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.tokenize("Hi")
    array([ 74, 107], dtype=int32)
    >>> tokenizer.detokenize([0, 74, 107, 1])
    'Hi'
    """

    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    def _tokenize_text(self, text):
        content = text.encode("utf-8") if isinstance(text, str) else text
        return np.frombuffer(content, np.uint8).astype(np.int32) + NUM_SPECIAL

    def _tokenize_tensor(self, text):
        import tensorflow as tf

        # decode_raw needs rows of equal length: join all rows, decode once, and split.
        joined = text if text.shape.rank == 0 else tf.strings.reduce_join(text)
        ids = tf.cast(tf.io.decode_raw(joined, tf.uint8), tf.int32) + NUM_SPECIAL
        if text.shape.rank == 0:
            return ids
        return tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text, unit="BYTE"), validate=False)

    def _detokenize_ids(self, ids):
        return self.detokenize_bytes(ids).decode("utf-8", errors="replace")

    def _detokenize_tensor(self, ids):
        import tensorflow as tf

        # One string per id. The last entry is for all ids outside the vocabulary.
        pieces = [b""] * NUM_SPECIAL + [bytes([byte]) for byte in range(NUM_BYTES)] + [b""]
        return tf.strings.reduce_join(look_up(pieces, ids), axis=-1)

    def detokenize_bytes(self, ids: Sequence[int]) -> bytes:
        """Convert Python ids to the exact bytes, which can begin or end inside a UTF-8 character; see `detokenize`."""
        return (self.checked_ids(ids) - NUM_SPECIAL).astype(np.uint8).tobytes()

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Return the longest prefix of the decoded text that later ids cannot change."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.detokenize_bytes(ids))
