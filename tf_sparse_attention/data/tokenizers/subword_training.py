"""Trains a subword vocabulary on a corpus, as tensor2tensor does."""

import collections
import logging
from collections.abc import Iterable, Mapping

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers import subword_tokenizer
from tf_sparse_attention.data.tokenizers.subword_tokenizer import ESCAPES, Escaping, SubwordTokenizer

MAX_MIN_COUNT = 1000  # upper end of the search for the minimum count of a subword
RESERVED_WORDS = tuple(subword.removesuffix("_") for subword in subword_tokenizer.RESERVED)
SIZE_TOLERANCE = 0.01  # relative difference to the target size at which the search stops


def train_subwords(
    documents: Iterable[str | bytes], vocabulary_size: int, max_length: int | None = None, num_iterations: int = 4
) -> SubwordTokenizer:
    """Train a `SubwordTokenizer` with the most frequent subwords of a corpus.

    Each round splits all words into the subwords of the previous round. A string is selected if it starts where one of
    these subwords starts and has at least a minimum count. Longer strings are selected first, and their counts are
    subtracted from the counts of their prefixes. All characters of the corpus are selected. Bisection finds the minimum
    count for which the number of subwords is within 1 % of the target, or as close as possible.

    Source: the vocabulary builder of tensor2tensor, which the published Routing Transformers use.
    Note: differs in that a newline is not a subword. A newline never occurs in encoded words, and would
    break the file format of one subword per line.

    Args:
        documents: iterable of `str` or UTF-8 `bytes`. Only word counts are kept in memory.
        vocabulary_size: target number of ids, including the two special ids.
        max_length: maximum number of characters of a subword. Default: None, no limit.
        num_iterations: number of rounds. Default 4.

    Raises:
        ValueError: If there is no text, or a document is not UTF-8.

    Example:

    >>> tokenizer = train_subwords(open_source(path="books").documents("train"), vocabulary_size=8000)
    >>> tokenizer.to_file("vocabulary.subwords")
    """
    checks.check_count("vocabulary_size", vocabulary_size)
    checks.check_optional_count("max_length", max_length)
    checks.check_count("num_iterations", num_iterations)
    counts = count_words(documents)
    if not counts:
        raise ValueError("`documents` must hold text. Received: none.")
    corpus = _Corpus(counts, max_length, num_iterations)
    return SubwordTokenizer(_search(corpus, vocabulary_size))


def count_words(documents: Iterable[str | bytes]) -> collections.Counter[str]:
    """Count words in documents, `str` or UTF-8 `bytes`."""
    counts: collections.Counter[str] = collections.Counter()
    for number, document in enumerate(documents):
        try:
            text = document.decode("utf-8") if isinstance(document, bytes) else document
        except UnicodeDecodeError as error:
            raise ValueError(f"`documents` must be UTF-8. Received: document {number}, where {error}.") from error
        counts.update(subword_tokenizer.split_words(text))
    return counts


def _search(corpus, size):
    """Return the vocabulary closest to a size, by bisection of the minimum count of a subword."""
    best, lowest, highest = None, 1, MAX_MIN_COUNT
    while lowest <= highest:
        min_count = (lowest + highest) // 2
        vocabulary = corpus.vocabulary(min_count)
        logging.info("%d subwords occur %d times or more; target: %d.", len(vocabulary), min_count, size)
        if best is None or abs(len(vocabulary) - size) < abs(len(best) - size):
            best = vocabulary
        if abs(len(vocabulary) - size) < SIZE_TOLERANCE * size or lowest >= highest or min_count < 2:
            break
        lowest, highest = (min_count + 1, highest) if len(vocabulary) > size else (lowest, min_count - 1)
    return best


class _Corpus:
    """Encoded words of a corpus, with their counts."""

    def __init__(self, counts: Mapping[str, int], max_length: int | None, num_iterations: int) -> None:
        # `Escaping` replaces newlines, which a file with one subword per line cannot hold.
        self._alphabet = sorted(set().union(*counts, *RESERVED_WORDS, ESCAPES) - {"\n"})
        escaping = Escaping(self._alphabet)
        self._words = [(word.translate(escaping) + "_", count) for word, count in counts.items()]
        self._reserved = [word.translate(escaping) + "_" for word in RESERVED_WORDS]
        self._max_length = max_length
        self._num_iterations = num_iterations
        self._initial_suffixes = self._count_suffixes(set(self._alphabet))  # the first round of every search

    def vocabulary(self, min_count):
        """Return the reserved subwords, then all characters and frequent strings, most frequent first."""
        ordered = self._most_frequent(self._candidates(self._initial_suffixes, min_count), min_count)
        for _ in range(1, self._num_iterations):
            suffixes = self._count_suffixes({*self._reserved, *ordered})
            ordered = self._most_frequent(self._candidates(suffixes, min_count), min_count)
        return self._reserved + ordered

    def _count_suffixes(self, subwords):
        """Count the suffixes of all words that start at the start of a subword."""
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
        """Count the prefixes of suffixes: single characters, and strings that occur at least `min_count` times.

        Strings with a rarer prefix are too rare, so they are not counted.
        """
        counts: dict[str, int] = {}
        length = 1
        while suffixes and (self._max_length is None or length <= self._max_length):
            prefixes: dict[str, int] = collections.defaultdict(int)
            for suffix, count in suffixes.items():
                prefixes[suffix[:length]] += count
            counts.update((string, count) for string, count in prefixes.items() if count >= min_count or length == 1)
            suffixes = {
                suffix: count
                for suffix, count in suffixes.items()
                if len(suffix) > length and prefixes[suffix[:length]] >= min_count
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
