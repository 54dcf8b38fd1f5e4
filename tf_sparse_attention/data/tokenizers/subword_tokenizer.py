"""The subwords of tensor2tensor, in which the published Routing Transformers were trained."""

import os
from collections.abc import Sequence
from itertools import chain

import numpy as np

from tf_sparse_attention.data.tokenizers import subword_graph
from tf_sparse_attention.data.tokenizers.subword_files import read_vocabulary, write_vocabulary
from tf_sparse_attention.data.tokenizers.subword_rules import ESCAPES, WORDS, Escaping, join_words, unescape
from tf_sparse_attention.data.tokenizers.tensors import is_tensor
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, as_text
from tf_sparse_attention.types import Config, Tensor

RESERVED = ("<pad>_", "<EOS>_")
MAX_CACHE_SIZE = 1_000_000  # words: some 200 MB


class SubwordTokenizer(Tokenizer):
    """Maps text to subwords as tensor2tensor's `SubwordTextEncoder` does, and back without loss.

    Text is cut into words of letters and numbers and of anything else. Each word, with "_" after it, becomes the
    longest subwords of the vocabulary from left to right. Characters that the vocabulary lacks are written by number,
    so that any text in UTF-8 has ids. Id 0 is padding and the start, id 1 ends a document.

    Python text gives NumPy arrays: some 7 MB of text a second. Tensors are handled with core TensorFlow ops alone, so
    the same tokenizer works inside `tf.data` and in a SavedModel that is served without this library.

    Args:
        vocabulary: list of the subwords, `str`, the first two of them "<pad>_" and "<EOS>_". If one occurs
            twice, its last id is used.

    Raises:
        ValueError: if the vocabulary does not begin with these two, or lacks one of the characters \\\\_u;0123456789,
            without which not every text has ids.

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
                f"`vocabulary` must have each character of {ESCAPES} by itself, to write what it lacks. "
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
        """Returns the tokenizer of a vocabulary file: a subword a line, in quotes or not.

        Raises:
            ValueError: if the file is empty, not UTF-8, or no such vocabulary.
        """
        return cls(read_vocabulary(path))

    def to_file(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary atomically, in the format of tensor2tensor."""
        write_vocabulary(self.vocabulary, path)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary)

    def tokenize(self, text: str | bytes | Tensor) -> Tensor:
        """Turns text into ids; no special id is added.

        Args:
            text: `str`, `bytes` in UTF-8, or a `tf.string` tensor of rank 0 or 1, in which bytes that are not UTF-8
                count as U+FFFD.

        Returns:
            int32 ids: a NumPy array (T,) for Python text, a tensor (T,) for a scalar tensor, and a ragged tensor
            (B, None) for a tensor (B,). Empty text gives no ids.

        Raises:
            ValueError: If `text` is of another type or rank, or not UTF-8; if a character that only occurs inside
                longer subwords stands by itself (in a graph `tf.errors.InvalidArgumentError`).
        """
        if is_tensor(text):
            return self._get_graph().tokenize(text)
        words = WORDS.findall(as_text(text))
        if not words:
            return np.zeros(0, np.int32)
        cache = self._cache
        if len(cache) > MAX_CACHE_SIZE:
            cache.clear()
        # A single space is a word at both ends, but nothing between two others: the cache has no ids for it.
        first = self._encode_word(" ") if words[0] == " " else cache[words[0]]
        if len(words) == 1:
            return np.array(first, np.int32)
        last = self._encode_word(" ") if words[-1] == " " else cache[words[-1]]
        between = chain.from_iterable(map(cache.__getitem__, words[1:-1]))
        return np.fromiter(chain(first, between, last), np.int32)

    def detokenize(self, ids: Sequence[int] | Tensor) -> str | Tensor:
        """Turns ids back into text, leaving out the special ids.

        Args:
            ids: for Python text a sequence or array (T,) of integers; otherwise an integer tensor (T,) or (B, T), dense
                or ragged.

        Returns:
            `str` for Python ids; a `tf.string` tensor, () or (B,), for tensors, in which an id outside the vocabulary
            gives nothing. A word that is cut in two comes back as its parts.

        Raises:
            ValueError: If Python ids are not a flat sequence of integers of the vocabulary.
        """
        if is_tensor(ids):
            return self._get_graph().detokenize(ids)
        return _decode(self._join_pieces(ids))

    def stable_prefix(self, ids: Sequence[int]) -> str:
        """Returns the prefix of the text of Python ids that further ids cannot change: its complete words."""
        return _decode(self._join_pieces(ids).rpartition("_")[0])

    def _join_pieces(self, ids):
        """Returns the subwords of Python ids as one string."""
        return "".join([self.vocabulary[number] for number in self.checked_ids(ids).tolist()])

    def _encode_word(self, word):
        """Returns the ids of the longest subwords of a word, from left to right, a tuple."""
        written = word.translate(self._escaping) + "_"
        found, start = [], 0
        while start < len(written):
            for end in range(min(len(written), start + self._longest), start, -1):
                number = self._ids.get(written[start:end])
                if number is not None:
                    break
            else:
                raise ValueError(
                    f"`vocabulary` must have the character {written[start]!r} by itself to write the word {word!r}."
                )
            found.append(number)
            start = end
        return tuple(found)

    def _get_graph(self):
        if self._graph is None:
            self._graph = subword_graph.SubwordGraph(self.vocabulary)
        return self._graph

    def get_config(self) -> Config:
        """Returns the arguments of the constructor."""
        return {"vocabulary": self.vocabulary}


def _decode(written):
    """Returns the text of words as a vocabulary has them, each with "_" after it."""
    words = (unescape(word) for word in written.split("_") if word)
    return join_words(word for word in words if word)


class _WordCache(dict):
    """Ids of words between two others, computed on first use."""

    def __init__(self, find):
        super().__init__({" ": ()})
        self._find = find

    def __missing__(self, word):
        self[word] = found = self._find(word)
        return found

    def clear(self):
        super().clear()
        self[" "] = ()
