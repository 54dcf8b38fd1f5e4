"""Finding the subwords of a corpus, as tensor2tensor does."""

import collections
import logging

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.subword_rules import ESCAPES, Escaping, words_of
from tf_sparse_attention.data.tokenizers.subword_tokenizer import RESERVED, SubwordTokenizer

LARGEST_COUNT = 1000  # of occurrences that the search may ask of a subword
RESERVED_WORDS = tuple(subword.removesuffix("_") for subword in RESERVED)
CLOSE = 0.01  # of the wanted size is near enough


def train_subwords(documents, vocabulary_size, max_length=None, num_iterations=4):
    """Returns a `SubwordTokenizer` with the subwords that occur most in a corpus.

    A subword is kept if it begins where a subword of the round before begins and occurs often enough, longer ones
    first, which take their occurrences from their beginnings; all characters of the corpus are kept. How often is
    enough is searched until the vocabulary has the wanted size within 1 %, or as nearly as it gets.

    Source: tensor2tensor's builder, which made the vocabulary of the published Routing Transformers.

    Args:
        documents: iterable of `str` or UTF-8 `bytes`; only the counts of its words are held in memory.
        vocabulary_size: wanted number of ids, with the two special ones.
        max_length: characters of the longest subword. None: no limit.
        num_iterations: rounds, default 4.

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
    return SubwordTokenizer(_search(corpus, vocabulary_size, 1, LARGEST_COUNT))


def count_words(documents):
    """Returns how often each word occurs in documents, `str` or UTF-8 `bytes`."""
    counts = collections.Counter()
    for number, document in enumerate(documents):
        try:
            text = document.decode("utf-8") if isinstance(document, bytes) else document
        except UnicodeDecodeError as error:
            raise ValueError(f"`documents` must be UTF-8. Received: document {number}, where {error}.") from error
        counts.update(words_of(text))
    return counts


def _search(corpus, size, lowest, highest):
    """Returns the vocabulary nearest to a size, halving the range of occurrences that a subword must have."""
    best = None
    while best is None or lowest <= highest:
        least = (lowest + highest) // 2
        found = corpus.vocabulary(least)
        logging.info("%d subwords occur %d times or more; wanted: %d.", len(found), least, size)
        if best is None or abs(len(found) - size) < abs(len(best) - size):
            best = found
        if abs(len(found) - size) < CLOSE * size or lowest >= highest or least < 2:
            break
        lowest, highest = (least + 1, highest) if len(found) > size else (lowest, least - 1)
    return best


class _Corpus:
    """Words in the characters of the vocabulary, with their counts."""

    def __init__(self, counts, max_length, num_iterations):
        self._alphabet = sorted(set().union(*counts, *RESERVED_WORDS, ESCAPES))
        escaping = Escaping(self._alphabet)
        self._words = [(word.translate(escaping) + "_", count) for word, count in counts.items()]
        self._reserved = [word.translate(escaping) + "_" for word in RESERVED_WORDS]
        self._max_length = max_length
        self._num_iterations = num_iterations
        self._of_characters = self._rests(set(self._alphabet))  # where all searches begin

    def vocabulary(self, least):
        """Returns the subwords that occur `least` times, most frequent first, after the reserved ones."""
        ordered = self._most_frequent(self._candidates(self._of_characters, least), least)
        for _ in range(1, self._num_iterations):
            rests = self._rests({*self._reserved, *ordered})
            ordered = self._most_frequent(self._candidates(rests, least), least)
        return self._reserved + ordered

    def _rests(self, subwords):
        """Returns how often each rest of a word occurs that begins where a subword of the word begins."""
        longest, rests = max(map(len, subwords)), collections.defaultdict(int)
        for word, count in self._words:
            start, end_of_word = 0, len(word)
            while start < end_of_word:
                rests[word[start:]] += count
                end = min(end_of_word, start + longest)
                while word[start:end] not in subwords:
                    end -= 1
                start = end
        return rests

    def _candidates(self, rests, least):
        """Returns how often each string occurs that begins a rest, characters and those that occur `least` times.

        What is longer than a string that occurs less often does so too, and needs no count.
        """
        counts, length = {}, 1
        while rests and (self._max_length is None or length <= self._max_length):
            found = collections.defaultdict(int)
            for rest, count in rests.items():
                found[rest[:length]] += count
            counts.update((string, count) for string, count in found.items() if count >= least or length == 1)
            rests = {
                rest: count for rest, count in rests.items() if len(rest) > length and found[rest[:length]] >= least
            }
            length += 1
        return counts

    def _most_frequent(self, counts, least):
        by_length = collections.defaultdict(list)
        for subword, count in counts.items():
            if count >= least:
                by_length[len(subword)].append(subword)
        kept, alphabet = [], set(self._alphabet)
        for length in sorted(by_length, reverse=True):
            for subword in by_length[length]:
                count = counts[subword]
                if count < least:
                    continue
                if subword not in alphabet:
                    kept.append((count, subword))
                for end in range(1, length):
                    counts[subword[:end]] -= count
        kept += [(counts.get(character, 0), character) for character in self._alphabet]
        return [subword for _, subword in sorted(kept, reverse=True)]
