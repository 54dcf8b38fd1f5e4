"""WordPiece tokenizer, based on tensorflow-text."""

import os
from collections.abc import Sequence

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.subword_rules import read_lines
from tf_sparse_attention.data.tokenizers.text_tokenizer import TextTokenizer
from tf_sparse_attention.types import Config

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
        super().__init__()
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
    def num_pieces(self) -> int:
        return len(self.vocabulary)

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
