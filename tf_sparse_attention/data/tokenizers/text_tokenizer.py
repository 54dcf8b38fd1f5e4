"""Base class of the tokenizers that are based on tensorflow-text."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import import_tensorflow_text
from tf_sparse_attention.data.tokenizers.tensors import is_tensor
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, as_text, check_id_tensor, check_string_tensor
from tf_sparse_attention.types import Tensor


class TextTokenizer(Tokenizer):
    """Base class of `SentencePieceTokenizer` and `WordPieceTokenizer`: ids of tensorflow-text plus 2.

    A subclass defines `_make`, which returns the tokenizer of tensorflow-text, and `num_pieces`.
    """

    is_lossless = False
    needs_tensorflow_text = True

    def __init__(self) -> None:
        self._inner: Any = None

    @property
    def num_pieces(self) -> int:
        """Number of ids of tensorflow-text."""
        raise NotImplementedError(f"{type(self).__name__} must define `num_pieces`.")

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: two special ids, then the pieces."""
        return self.num_pieces + self.num_special

    @property
    def inner(self) -> Any:
        """Tokenizer of tensorflow-text."""
        if self._inner is None:
            import tensorflow as tf

            with tf.init_scope():  # create it outside a traced graph
                self._inner = self._make(import_tensorflow_text())
        return self._inner

    def _make(self, tensorflow_text: ModuleType) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define `_make`.")

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Convert text to ids, without special ids.

        Args:
            text: `str`, UTF-8 `bytes`, or `tf.string` tensor () or (B,).

        Returns:
            int32 ids: NumPy array (T,) for Python text, tensor (T,) for a scalar tensor, ragged tensor (B, None) for a
            tensor (B,). Empty text has no ids.

        Raises:
            ValueError: If `text` has another type or rank, or is not UTF-8.
        """
        import_tensorflow_text()  # import first: the ImportError names the extra
        import tensorflow as tf

        if not is_tensor(text):
            return self.tokenize(tf.constant(as_text(text))).numpy()
        check_string_tensor(text)
        ids = tf.cast(self.inner.tokenize(tf.reshape(text, [-1])), tf.int32) + self.num_special
        return ids.values if text.shape.rank == 0 else ids  # type: ignore[union-attr]  # checked above

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Convert ids to text. Special ids are left out.

        Args:
            ids: sequence or array (T,) of integers, or integer tensor (T,) or (B, T), dense or ragged. In tensors, ids
                outside the vocabulary are left out.

        Returns:
            `str` for Python ids, `tf.string` tensor () or (B,) for tensors. The text can differ from the original:
            spaces, unknown characters and, for some vocabularies, capitals and accents are lost.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers in the vocabulary.
        """
        import_tensorflow_text()  # import first: the ImportError names the extra
        import tensorflow as tf

        if not is_tensor(ids):
            ids = tf.constant(np.asarray(self.checked_ids(ids), np.int32))
            texts: Tensor = self.detokenize(ids)
            return texts.numpy().decode("utf-8", errors="replace")
        check_id_tensor(ids)
        rows = (
            ids
            if isinstance(ids, tf.RaggedTensor)
            else tf.RaggedTensor.from_tensor(tf.reshape(ids, [-1, tf.shape(ids)[-1]]))
        )
        keep = (rows.values >= self.num_special) & (rows.values < self.vocabulary_size)
        rows = tf.ragged.boolean_mask(rows, rows.with_values(keep))
        texts = self.inner.detokenize(tf.cast(rows, tf.int32) - self.num_special)
        return texts[0] if ids.shape.rank == 1 else texts  # type: ignore[union-attr]  # checked above
