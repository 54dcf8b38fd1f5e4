"""SentencePiece and WordPiece tokenizers, based on tensorflow-text."""

import base64
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tf_sparse_attention import checks
from tf_sparse_attention.backends import import_optional
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, as_text, read_lines
from tf_sparse_attention.types import Config


def import_tensorflow_text() -> Any:
    """Import and return `tensorflow_text`."""
    return import_optional("tensorflow_text", "text", "A tokenizer of SentencePiece or WordPiece (not on Windows)")


class TextTokenizer(Tokenizer):
    """Base class of `SentencePieceTokenizer` and `WordPieceTokenizer`: ids of tensorflow-text plus 2."""

    is_lossless = False
    needs_tensorflow_text = True
    _make: Callable[[Any], Any]  # returns the tokenizer of tensorflow-text; defined by subclasses

    @functools.cached_property
    def inner(self) -> Any:
        """Tokenizer of tensorflow-text."""
        tensorflow_text = import_tensorflow_text()
        import tensorflow as tf

        with tf.init_scope():  # create it outside a traced graph
            return self._make(tensorflow_text)

    def _tokenize_text(self, text):
        text = as_text(text)
        import_tensorflow_text()  # import first: the ImportError names the extra
        import tensorflow as tf

        return self._tokenize_tensor(tf.constant(text)).numpy()

    def _tokenize_tensor(self, text):
        import tensorflow as tf

        ids = tf.cast(self.inner.tokenize(tf.reshape(text, [-1])), tf.int32) + self.num_special
        return ids.values if text.shape.rank == 0 else ids

    def _detokenize_ids(self, ids):
        import_tensorflow_text()  # import first: the ImportError names the extra
        import tensorflow as tf

        return self._detokenize_tensor(tf.constant(ids, tf.int32)).numpy().decode("utf-8", errors="replace")

    def _detokenize_tensor(self, ids):
        import tensorflow as tf

        rows = ids
        if not isinstance(ids, tf.RaggedTensor):
            rows = tf.RaggedTensor.from_tensor(tf.reshape(ids, [-1, tf.shape(ids)[-1]]))
        keep = (rows.values >= self.num_special) & (rows.values < self.vocabulary_size)
        rows = tf.ragged.boolean_mask(rows, rows.with_values(keep))
        texts = self.inner.detokenize(tf.cast(rows, tf.int32) - self.num_special)
        return texts[0] if ids.shape.rank == 1 else texts


class SentencePieceTokenizer(TextTokenizer):
    """Tokenizer of a SentencePiece model (Kudo and Richardson 2018): piece i has the id i + 2.

    Not lossless: text is normalized, and unknown characters are lost. Needs tensorflow-text, also in a SavedModel.

    Args:
        model: content of a model file, `bytes`, or its base64 encoding, `str`.

    Raises:
        ValueError: If `model` is not a SentencePiece model.
        ImportError: If tensorflow-text is not installed.

    Example:

    >>> tokenizer = SentencePieceTokenizer.from_file("spm.model")
    >>> tokenizer.detokenize(tokenizer.tokenize("Text number 1."))
    'Text number 1.'
    """

    def __init__(self, model: bytes | str) -> None:
        self._model = base64.b64decode(model) if isinstance(model, str) else bytes(model)
        import_tensorflow_text()
        import tensorflow as tf

        try:
            self._num_pieces = int(self.inner.vocab_size())
        except tf.errors.OpError as error:
            raise ValueError(f"`model` must be a SentencePiece model. Received: {len(self._model)} bytes.") from error

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SentencePieceTokenizer":
        """Load a tokenizer from a model file, NAME.model."""
        path = pathlib.Path(path).expanduser()
        if not path.is_file():
            raise ValueError(f"`path` must be a SentencePiece model file. Received: path={path}.")
        return cls(path.read_bytes())

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: two special ids, then the pieces."""
        return self._num_pieces + self.num_special

    @property
    def trackable(self) -> Any:
        """Tokenizer of tensorflow-text, which holds the model."""
        return self.inner

    def _make(self, tensorflow_text):
        # `FastSentencepieceTokenizer` differs from SentencePiece for BPE models.
        return tensorflow_text.SentencepieceTokenizer(self._model)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"model": base64.b64encode(self._model).decode("ascii")}


UNKNOWN = "[UNK]"


class WordPieceTokenizer(TextTokenizer):
    """WordPiece tokenizer of BERT (Devlin et al. 2019): piece i of the vocabulary has the id i + 2.

    Not lossless: decoding puts single spaces between words and punctuation marks, words that the vocabulary cannot
    represent become "[UNK]", and `lowercase` removes capitals and accents. Needs tensorflow-text, also in a SavedModel.

    Args:
        vocabulary: the pieces, with "[UNK]". Pieces inside words begin with "##".
        lowercase: whether to first convert text to lower case and remove accents. Default True.

    Raises:
        ValueError: If the vocabulary lacks "[UNK]" or repeats a piece.
        ImportError: If tensorflow-text is not installed.

    Example:

    >>> tokenizer = WordPieceTokenizer(["[UNK]", "a", "word", "##s"])
    >>> tokenizer.detokenize(tokenizer.tokenize("A words"))
    'a words'
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = True) -> None:
        self.vocabulary = list(vocabulary)
        has_unknown, num_different = UNKNOWN in self.vocabulary, len(set(self.vocabulary))
        if not has_unknown or num_different < len(self.vocabulary):
            raise ValueError(
                f"`vocabulary` must have {UNKNOWN} and no repeated piece. Received: {len(self.vocabulary)} pieces, "
                f"{num_different} different, {'with' if has_unknown else 'without'} {UNKNOWN}."
            )
        checks.check_switch("lowercase", lowercase)
        self.lowercase = lowercase

    @classmethod
    def from_file(cls, path: str | os.PathLike, lowercase: bool = True) -> "WordPieceTokenizer":
        """Load a tokenizer from a vocabulary file, with one piece per line."""
        return cls(read_lines(path), lowercase)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: two special ids, then the pieces."""
        return len(self.vocabulary) + self.num_special

    def _make(self, tensorflow_text):
        import tensorflow as tf

        return tensorflow_text.FastBertTokenizer(
            self.vocabulary,
            lower_case_nfd_strip_accents=self.lowercase,
            token_out_type=tf.int32,
            unknown_token=UNKNOWN,
            support_detokenization=True,
        )

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"vocabulary": self.vocabulary, "lowercase": self.lowercase}
