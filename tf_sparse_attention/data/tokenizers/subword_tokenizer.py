"""Subword tokenizer of tensor2tensor, which the published Routing Transformers use."""

import os
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from tf_sparse_attention.data.tokenizers import subword_graph
from tf_sparse_attention.data.tokenizers.subword_rules import (
    ESCAPES,
    WORDS,
    Escaping,
    join_words,
    read_vocabulary,
    unescape,
    write_vocabulary,
)
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, as_text, is_tensor
from tf_sparse_attention.types import Config, Tensor

RESERVED = ("<pad>_", "<EOS>_")
MAX_CACHE_SIZE = 1_000_000  # words, about 200 MB


class SubwordTokenizer(Tokenizer):
    """Lossless subword tokenizer with the ids of tensor2tensor's `SubwordTextEncoder`.

    Text is split into words: runs of alphanumeric or of other characters. Each word, with "_" appended, is split into
    subwords by greedy longest-match-first search. Characters that the vocabulary lacks are encoded as numbers, so all
    UTF-8 text has ids. Id 0 is padding and the start token; id 1 ends a document.

    Python text is converted to NumPy arrays, about 7 MB of text per second. Tensors need only core TensorFlow ops, so
    the tokenizer works inside `tf.data`, and in a SavedModel without this library.

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
        self._cache = _WordCache(self._encode_word)
        self._graph: subword_graph.SubwordGraph | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SubwordTokenizer":
        """Load a tokenizer from a vocabulary file, with one subword per line, quoted or not.

        Raises:
            ValueError: If the file is missing, empty or not UTF-8, or the vocabulary is invalid.
        """
        return cls(read_vocabulary(path))

    def to_file(self, path: str | os.PathLike) -> None:
        """Write the vocabulary to a file atomically, in the format of tensor2tensor."""
        write_vocabulary(self.vocabulary, path)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Convert text to ids, without special ids.

        Args:
            text: `str`, UTF-8 `bytes`, or `tf.string` tensor () or (B,). Invalid UTF-8 in tensors is read as U+FFFD.

        Returns:
            int32 ids: NumPy array (T,) for Python text, tensor (T,) for a scalar tensor, ragged tensor (B, None) for a
            tensor (B,). Empty text has no ids.

        Raises:
            ValueError: If `text` has another type or rank, or is not UTF-8. If the vocabulary lacks a character
                of a word as a subword; in graphs this is a `tf.errors.InvalidArgumentError`.
        """
        if is_tensor(text):
            return self._get_graph().tokenize(text)
        words = WORDS.findall(as_text(text))
        if not words:
            return np.zeros(0, np.int32)
        cache = self._cache
        if len(cache) > MAX_CACHE_SIZE:
            cache.clear()
        # A single space is a word at either end of the text. Between words it is implicit: the cache has no ids for it.
        first = self._encode_word(" ") if words[0] == " " else cache[words[0]]
        if len(words) == 1:
            return np.array(first, np.int32)
        last = self._encode_word(" ") if words[-1] == " " else cache[words[-1]]
        between = chain.from_iterable(map(cache.__getitem__, words[1:-1]))
        return np.fromiter(chain(first, between, last), np.int32)

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Convert ids to text. Special ids are left out.

        Args:
            ids: sequence or array (T,) of integers, or integer tensor (T,) or (B, T), dense or ragged.

        Returns:
            `str` for Python ids, `tf.string` tensor () or (B,) for tensors. In tensors, ids outside the vocabulary are
            left out. An incomplete last word is included.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers in the vocabulary.
        """
        if is_tensor(ids):
            return self._get_graph().detokenize(ids)
        return _decode(self._join_pieces(ids))

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Return the complete words of the decoded text, which later ids cannot change."""
        return _decode(self._join_pieces(ids).rpartition("_")[0])

    def _join_pieces(self, ids):
        """Concatenate the subwords of Python ids."""
        return "".join([self.vocabulary[number] for number in self.checked_ids(ids).tolist()])

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

    def _get_graph(self):
        if self._graph is None:
            self._graph = subword_graph.SubwordGraph(self.vocabulary)
        return self._graph

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"vocabulary": self.vocabulary}


def _decode(written):
    """Decode encoded words, each of which ends in "_"."""
    words = (unescape(word) for word in written.split("_") if word)
    return join_words(word for word in words if word)


class _WordCache(dict):
    """Ids of words inside a text, computed on first use."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        super().__init__({" ": ()})
        self._encode = encode

    def __missing__(self, word: str) -> Sequence[int]:
        self[word] = ids = self._encode(word)
        return ids

    def clear(self):
        super().clear()
        self[" "] = ()
