"""Finds the subwords of a corpus, as tensor2tensor does."""

import collections
import logging
from collections.abc import Iterable

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.subword_rules import ESCAPES, Escaping, words_of
from tf_sparse_attention.data.tokenizers.subword_tokenizer import RESERVED, SubwordTokenizer

MAX_MIN_COUNT = 1000  # upper end of the search for the minimum count of a subword
RESERVED_WORDS = tuple(subword.removesuffix("_") for subword in RESERVED)
SIZE_TOLERANCE = 0.01  # relative difference to the target size at which the search stops


def train_subwords(
    documents: Iterable[str | bytes], vocabulary_size: int, max_length: int | None = None, num_iterations: int = 4
) -> SubwordTokenizer:
    """Returns a `SubwordTokenizer` with the subwords that occur most in a corpus.

    A subword is selected if it begins where a subword of the round before begins and occurs often enough, longer ones
    first, which take their occurrences from their beginnings; all characters of the corpus are selected. The
    minimum count is found by bisection: the size is within 1 % of the target, or as near as possible.

    Source: tensor2tensor's builder, which made the vocabulary of the published Routing Transformers. Note: differs in
    that a newline, which no encoding has, is no subword: in a file of lines it stood for two others.

    Args:
        documents: iterable of `str` or UTF-8 `bytes`; only the counts of its words are held in memory.
        vocabulary_size: target number of ids, the two special ones included.
        max_length: maximum number of characters of a subword. Default: None, no limit.
        num_iterations: number of rounds. Default 4.

    Raises:
        ValueError: if there is no text, or not all of it is UTF-8.

    Example:

    >>> tokenizer = train_subwords(load_documents("train", path="books"), vocabulary_size=8000)
    >>> tokenizer.to_file("vocabulary.subwords")
    """
    checks.check_count("vocabulary_size", vocabulary_size)
    checks.check_optional_count("max_length", max_length)
    checks.check_count("num_iterations", num_iterations)
    counts = count_words(documents)
    if not counts:
        raise ValueError("`documents` must hold text. Received: none.")
    corpus = _Corpus(counts, max_length, num_iterations)
    return SubwordTokenizer(_search(corpus, vocabulary_size, 1, MAX_MIN_COUNT))


def count_words(documents: Iterable[str | bytes]) -> collections.Counter[str]:
    """Returns how often each word occurs in documents, `str` or UTF-8 `bytes`."""
    counts: collections.Counter[str] = collections.Counter()
    for number, document in enumerate(documents):
        try:
            text = document.decode("utf-8") if isinstance(document, bytes) else document
        except UnicodeDecodeError as error:
            raise ValueError(f"`documents` must be UTF-8. Received: document {number}, where {error}.") from error
        counts.update(words_of(text))
    return counts


def _search(corpus, size, lowest, highest):
    """Returns the vocabulary nearest to a size, by bisection of the minimum count of a subword."""
    best = None
    while best is None or lowest <= highest:
        min_count = (lowest + highest) // 2
        found = corpus.vocabulary(min_count)
        logging.info("%d subwords occur %d times or more; target: %d.", len(found), min_count, size)
        if best is None or abs(len(found) - size) < abs(len(best) - size):
            best = found
        if abs(len(found) - size) < SIZE_TOLERANCE * size or lowest >= highest or min_count < 2:
            break
        lowest, highest = (min_count + 1, highest) if len(found) > size else (lowest, min_count - 1)
    return best


class _Corpus:
    """Words in the characters of the vocabulary, with their counts."""

    def __init__(self, counts, max_length, num_iterations):
        # `Escaping` leaves no newline in a word, and in a file of a subword a line none can stand.
        self._alphabet = sorted(set().union(*counts, *RESERVED_WORDS, ESCAPES) - {"\n"})
        escaping = Escaping(self._alphabet)
        self._words = [(word.translate(escaping) + "_", count) for word, count in counts.items()]
        self._reserved = [word.translate(escaping) + "_" for word in RESERVED_WORDS]
        self._max_length = max_length
        self._num_iterations = num_iterations
        self._initial_suffixes = self._count_suffixes(set(self._alphabet))  # the first round of every search

    def vocabulary(self, min_count):
        """Returns the subwords that occur `min_count` times, most frequent first, after the reserved ones."""
        ordered = self._most_frequent(self._candidates(self._initial_suffixes, min_count), min_count)
        for _ in range(1, self._num_iterations):
            suffixes = self._count_suffixes({*self._reserved, *ordered})
            ordered = self._most_frequent(self._candidates(suffixes, min_count), min_count)
        return self._reserved + ordered

    def _count_suffixes(self, subwords):
        """Returns how often each suffix of a word occurs that begins where a subword of the word begins."""
        longest = max(map(len, subwords))
        suffixes: dict[str, int] = collections.defaultdict(int)
        for word, count in self._words:
            start, end_of_word = 0, len(word)
            while start < end_of_word:
                suffixes[word[start:]] += count
                end = min(end_of_word, start + longest)
                while word[start:end] not in subwords:
                    end -= 1
                start = end
        return suffixes

    def _candidates(self, suffixes, min_count):
        """Returns how often each string occurs that begins a suffix, characters and those that occur `min_count` times.

        What is longer than a string that occurs less often does so too, and needs no count.
        """
        counts: dict[str, int] = {}
        length = 1
        while suffixes and (self._max_length is None or length <= self._max_length):
            found: dict[str, int] = collections.defaultdict(int)
            for suffix, count in suffixes.items():
                found[suffix[:length]] += count
            counts.update((string, count) for string, count in found.items() if count >= min_count or length == 1)
            suffixes = {
                suffix: count
                for suffix, count in suffixes.items()
                if len(suffix) > length and found[suffix[:length]] >= min_count
            }
            length += 1
        return counts

    def _most_frequent(self, counts, min_count):
        by_length = collections.defaultdict(list)
        for subword, count in counts.items():
            if count >= min_count:
                by_length[len(subword)].append(subword)
        selected, alphabet = [], set(self._alphabet)
        for length in sorted(by_length, reverse=True):
            for subword in by_length[length]:
                count = counts[subword]
                if count < min_count:
                    continue
                if subword not in alphabet:
                    selected.append((count, subword))
                for end in range(1, length):
                    counts[subword[:end]] -= count
        selected += [(counts.get(character, 0), character) for character in self._alphabet]
        return [subword for _, subword in sorted(selected, reverse=True)]
