"""Subword tokenizer of tensor2tensor, which the published Routing Transformers use.

A word is a maximal run of alphanumeric characters (Unicode categories L and N), or of other characters. Encoding drops
a single space between two words, and decoding restores it. Encoded words end in "_". A backslash, an underscore and
characters that the vocabulary lacks are encoded as "\\\\\\\\", "\\\\u" and "\\\\NUMBER;".
"""

import functools
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, as_text, read_lines
from tf_sparse_attention.types import Config

RESERVED = ("<pad>_", "<EOS>_")
ESCAPES = "\\_u;0123456789"
UNDEFINED = "\u3013"  # replaces invalid code points
MAX_CACHE_SIZE = 1_000_000  # words, about 200 MB
# Runs of characters for which `str.isalnum` is True (\w without the underscore), or of other characters.
_WORDS = re.compile(r"[^\W_]+|[\W_]+")
_ESCAPED = re.compile(r"\\(?:u|\\|([0-9]+);)")


class SubwordTokenizer(Tokenizer):
    """Lossless subword tokenizer with the ids of tensor2tensor's `SubwordTextEncoder`.

    Text is split into words: runs of alphanumeric or of other characters. Each word, with "_" appended, is split into
    subwords by greedy longest-match-first search. Characters that the vocabulary lacks are encoded as numbers, so all
    UTF-8 text has ids. Id 0 is padding and the start token; id 1 ends a document.

    Python text is converted to NumPy arrays, about 7 MB of text per second. Tensors need only core TensorFlow ops, so
    the tokenizer works inside `tf.data`, and in a SavedModel without this library. Invalid UTF-8 in tensors is read as
    U+FFFD. `tokenize` also raises a `ValueError` (in graphs a `tf.errors.InvalidArgumentError`) if the vocabulary has a
    character of a word only inside longer subwords. `detokenize` includes an incomplete last word.

    Args:
        vocabulary: the subwords, beginning with "<pad>_" and "<EOS>_". A repeated subword has its last id.

    Raises:
        ValueError: If the vocabulary does not begin with "<pad>_" and "<EOS>_", or lacks one of the characters
            \\\\_u;0123456789, which escape sequences need.

    Example:

    >>> tokenizer = train_subwords(["a word and another"], vocabulary_size=60)  # or SubwordTokenizer.from_file(path)
    >>> tokenizer.detokenize(tokenizer.tokenize("a naïve example"))
    'a naïve example'
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        vocabulary = list(vocabulary)
        if tuple(vocabulary[:2]) != RESERVED:
            raise ValueError(f"`vocabulary` must begin with {RESERVED}. Received: {vocabulary[:2]}.")
        ids = {subword: number for number, subword in enumerate(vocabulary) if subword}
        missing = [character for character in ESCAPES if character not in ids]
        if missing:
            raise ValueError(
                f"`vocabulary` must have each character of {ESCAPES} as a subword, for escape sequences. "
                f"Received: {len(vocabulary)} subwords without {''.join(missing)}."
            )
        self.vocabulary = vocabulary
        self._ids = ids
        self._longest = max(map(len, ids))
        self._escaping = Escaping(set().union(*ids) | set(ESCAPES))
        self._cached_encode_word = functools.lru_cache(MAX_CACHE_SIZE)(self._encode_word)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SubwordTokenizer":
        """Load a tokenizer from a vocabulary file, with one subword per line, quoted or not.

        Raises:
            ValueError: If the file is missing, empty or not UTF-8, or the vocabulary is invalid.
        """
        return cls([_strip_quotes(line.rstrip()) for line in read_lines(path)])

    def to_file(self, path: str | os.PathLike) -> None:
        """Write the vocabulary to a file atomically, in the format of tensor2tensor: one subword per line, in quotes.

        Raises:
            ValueError: If a subword has a newline.
        """
        invalid = [subword for subword in self.vocabulary if "\n" in subword]
        if invalid:
            raise ValueError(f"`vocabulary` must not have a newline in a subword. Received: {invalid[0]!r}.")
        path = pathlib.Path(path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text("".join(f"'{subword}'\n" for subword in self.vocabulary), "utf-8", newline="")

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def _tokenize_text(self, text):
        words = split_words(as_text(text))
        return np.fromiter(itertools.chain.from_iterable(map(self._cached_encode_word, words)), np.int32)

    def _encode_word(self, word):
        """Return the ids of a word as a tuple, by greedy longest-match-first search."""
        written = word.translate(self._escaping) + "_"
        ids, start = [], 0
        while start < len(written):
            for end in range(min(len(written), start + self._longest), start, -1):
                number = self._ids.get(written[start:end])
                if number is not None:
                    break
            else:
                raise ValueError(
                    "`vocabulary` must have each character of a word as a subword. "
                    f"Received: a vocabulary without {written[start]!r}, for the word {word!r}."
                )
            ids.append(number)
            start = end
        return tuple(ids)

    def _detokenize_ids(self, ids):
        return _decode(self._join_pieces(ids))

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Return the complete words of the decoded text, which later ids cannot change."""
        return _decode(self._join_pieces(self.checked_ids(ids)).rpartition("_")[0])

    def _join_pieces(self, ids):
        return "".join([self.vocabulary[number] for number in ids.tolist()])

    @functools.cached_property
    def _graph(self):
        from tf_sparse_attention.data.tokenizers.subword_graph import SubwordGraph

        return SubwordGraph(self.vocabulary)

    def _tokenize_tensor(self, text):
        return self._graph.tokenize(text)

    def _detokenize_tensor(self, ids):
        return self._graph.detokenize(ids)

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"vocabulary": self.vocabulary}


def split_words(text: str) -> list[str]:
    """Split text into words."""
    words = _WORDS.findall(text)
    # A single space at either end of the text is a word.
    return words[:1] + [word for word in words[1:-1] if word != " "] + words[1:][-1:]


class Escaping(dict):
    """Table for `str.translate` that escapes the characters outside an alphabet."""

    def __init__(self, alphabet: Iterable[str]) -> None:
        super().__init__({ord(character): character for character in alphabet if character != "\n"})
        self[ord("\\")], self[ord("_")] = "\\\\", "\\u"

    def __missing__(self, code: int) -> str:
        return f"\\{code};"


def _decode(written):
    """Decode encoded words, each of which ends in "_", and put a space between consecutive alphanumeric words."""
    pieces, previous = [], False
    for word in (_ESCAPED.sub(_unescape, word) for word in written.split("_") if word):
        is_alphanumeric = word[0].isalnum()
        pieces += [" ", word] if previous and is_alphanumeric else [word]
        previous = is_alphanumeric
    return "".join(pieces)


def _unescape(match):
    if match[1] is None:
        return "_" if match[0] == "\\u" else "\\"
    code = int(match[1]) if len(match[1]) < 9 else sys.maxunicode + 1
    # UTF-8 cannot encode a lone surrogate.
    return chr(code) if code <= sys.maxunicode and not 0xD800 <= code <= 0xDFFF else UNDEFINED


def _strip_quotes(line):
    in_quotes = len(line) > 1 and line[0] == line[-1] and line[0] in "'\""
    return line[1:-1] if in_quotes else line
