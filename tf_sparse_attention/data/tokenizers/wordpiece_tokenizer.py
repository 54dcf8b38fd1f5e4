"""WordPiece, as an operation of tensorflow-text."""

import os
from collections.abc import Sequence

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.subword_files import read_lines
from tf_sparse_attention.data.tokenizers.text_tokenizer import TextTokenizer
from tf_sparse_attention.types import Config

UNKNOWN = "[UNK]"


class WordPieceTokenizer(TextTokenizer):
    """Maps text to word pieces as BERT does (Devlin et al. 2019), piece i of the vocabulary to id i + 2.

    Not lossless: words come back with single spaces between them and between marks, words that the vocabulary cannot
    write become "[UNK]", and, unless `lowercase` is off, capitals and accents are lost. Needs tensorflow-text, in a
    SavedModel too.

    Args:
        vocabulary: list of the pieces, `str`; those inside of words begin with "##"; "[UNK]" must be there.
        lowercase: whether text is put in small letters without accents first. Default True.

    Raises:
        ValueError: If the vocabulary lacks "[UNK]" or has a piece twice.
        ImportError: If tensorflow-text is not installed.

    Example:

    >>> tokenizer = WordPieceTokenizer(["[UNK]", "a", "word", "##s"])
    >>> tokenizer.detokenize(tokenizer.tokenize("A words"))
    'a words'
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = True) -> None:
        super().__init__()
        self.vocabulary = list(vocabulary)
        if UNKNOWN not in self.vocabulary or len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError(
                f"`vocabulary` must have {UNKNOWN}, and no piece twice. Received: {len(self.vocabulary)} pieces, "
                f"{len(set(self.vocabulary))} different ones, {UNKNOWN in self.vocabulary} for {UNKNOWN}."
            )
        checks.check_switch("lowercase", lowercase)
        self.lowercase = lowercase

    @classmethod
    def from_file(cls, path: str | os.PathLike, lowercase: bool = True) -> "WordPieceTokenizer":
        """Returns the tokenizer of a vocabulary file, a piece a line."""
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
        """Returns the arguments of the constructor."""
        return {"vocabulary": self.vocabulary, "lowercase": self.lowercase}
