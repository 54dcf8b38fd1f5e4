"""Subword tokenization of tensors, with core TensorFlow ops only.

All tables are constants: they need no initialization in `tf.data` and no tracking in a SavedModel. Most words of a
document are frequent and are a single subword, so each distinct word is looked up once. All words that are not a
subword are split in parallel.
"""

import functools
import importlib
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.data.tokenizers.subword_tokenizer import ESCAPES, UNDEFINED
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer, look_up
from tf_sparse_attention.types import Tensor

tf: Any = importlib.import_module("tensorflow")  # this module is imported when the first tensor is tokenized

NUM_SPECIAL = Tokenizer.num_special
MARK = b"\xff"  # separator: this byte never occurs in UTF-8
NUM_BUCKETS = 2**63 - 1  # Collisions in the vocabulary are an error; another string collides with probability 1e-13.


class SubwordGraph:
    """TensorFlow ops that tokenize and detokenize with a vocabulary of subwords."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._pieces = [b""] * NUM_SPECIAL + [piece.encode() for piece in vocabulary[NUM_SPECIAL:]] + [b""]
        ids = {piece.encode(): number for number, piece in enumerate(vocabulary) if piece}
        with tf.init_scope():  # eager values even while a graph is traced
            hashes = tf.strings.to_hash_bucket_fast(list(ids), NUM_BUCKETS).numpy()
        order = np.argsort(hashes)
        self._hashes, self._ids = hashes[order], np.fromiter(ids.values(), np.int32)[order]
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError("`vocabulary` must have subwords with different hashes. Received: two with equal hashes.")
        self._lengths = np.array(sorted({len(piece) for piece in ids}, reverse=True), np.int32)
        alphabet = {character for piece in vocabulary for character in piece} | set(ESCAPES)
        self._alphabet = np.array(sorted(map(ord, alphabet - {"\n"})), np.int32)

    def tokenize(self, text: Tensor) -> Tensor:
        """Return int32 ids: (T,) for a scalar string, ragged (B, None) for strings (B,)."""
        words = _split(tf.reshape(text, [-1]))
        unique, indices = tf.unique(words.values)
        ids = tf.gather(self._encode_words(unique), indices)
        ids = words.with_values(ids).merge_dims(1, 2)
        return ids.values if text.shape.rank == 0 else ids

    def _encode_words(self, words):
        """Return the ids of words (W,), ragged (W, None)."""
        written = self._escape(words)
        whole = self._look_up(written)
        known, unknown = tf.where(whole >= 0)[:, 0], tf.where(whole < 0)[:, 0]
        ids, rows = self._split_words(tf.gather(written, unknown))
        rows = tf.concat([known, tf.gather(unknown, rows)], axis=0)
        ids = tf.concat([tf.gather(whole, known), ids], axis=0)
        order = tf.argsort(rows, stable=True)
        return tf.RaggedTensor.from_value_rowids(
            tf.gather(ids, order), tf.gather(rows, order), nrows=tf.size(words, out_type=tf.int64), validate=False
        )

    def _look_up(self, subwords):
        """Return the ids of strings, -1 for strings that are not in the vocabulary."""
        hashes = tf.strings.to_hash_bucket_fast(subwords, NUM_BUCKETS)
        index, is_known = _find(self._hashes, tf.reshape(hashes, [-1]))
        return tf.reshape(tf.where(is_known, tf.gather(self._ids, index), -1), tf.shape(hashes))

    def _split_words(self, words):
        """Split words (W,) by greedy longest-match-first search. Return ids, and the index of the word of each id.

        Each step advances all words by one subword and drops finished words.
        """

        def advance(step, rows, starts, ids, word_ids):
            rest = tf.gather(words, rows)
            left = tf.strings.length(rest) - starts
            shape = [tf.size(rest), len(self._lengths)]
            parts = (tf.broadcast_to(x, shape) for x in (rest[:, None], starts[:, None], self._lengths[None]))
            matches = self._look_up(tf.strings.substr(*parts))
            longest = tf.argmax(matches >= 0, axis=1)  # the first match, because lengths are in descending order
            chosen = tf.gather(matches, longest, batch_dims=1)
            tf.debugging.assert_non_negative(chosen, "`vocabulary` must have each of its characters as a subword.")
            taken = tf.minimum(tf.gather(self._lengths, longest), left)
            ids, word_ids = ids.write(step, chosen), word_ids.write(step, rows)
            is_unfinished = taken < left
            rows, starts = tf.boolean_mask(rows, is_unfinished), tf.boolean_mask(starts + taken, is_unfinished)
            return step + 1, rows, starts, ids, word_ids

        def array(dtype):
            array = tf.TensorArray(dtype, size=1, dynamic_size=True, infer_shape=False, element_shape=[None])
            return array.write(0, tf.zeros([0], dtype))  # `concat` needs an element even without words

        rows = tf.range(tf.size(words, out_type=tf.int64))
        state = tf.constant(1), rows, tf.zeros_like(rows, tf.int32), array(tf.int32), array(tf.int64)
        shapes = [tf.TensorShape(shape) for shape in ([], [None], [None], None, None)]
        *_, ids, word_ids = tf.while_loop(
            lambda step, rows, *_: tf.size(rows) > 0, advance, state, shape_invariants=tuple(shapes)
        )
        return ids.concat(), word_ids.concat()

    def _escape(self, words):
        """Escape the characters of words that the vocabulary lacks, and append "_" to each word."""
        for pattern, written in ((r"\\", r"\\\\"), ("_", r"\\u")):
            words = tf.strings.regex_replace(words, pattern, written)
        characters = tf.strings.unicode_split(words, "UTF-8")
        codes = tf.strings.unicode_decode(words, "UTF-8").values
        _, is_known = _find(self._alphabet, codes)
        escaped = tf.strings.join(["\\", tf.strings.as_string(codes), ";"])
        characters = characters.with_values(tf.where(is_known, characters.values, escaped))
        return tf.strings.join([tf.strings.reduce_join(characters, axis=-1), "_"])

    def detokenize(self, ids: Tensor) -> Tensor:
        """Return strings () or (B,) for ids (T,) or (B, T), dense or ragged."""
        joined = tf.strings.reduce_join(look_up(self._pieces, ids), axis=-1)
        words = tf.strings.split(tf.reshape(joined, [-1]), "_")
        words = _keep(words, tf.not_equal(words.values, ""))
        return tf.reshape(_join(words.with_values(_unescape(words.values))), tf.shape(joined))


def _find(table, values):
    """Return the index of each value in a sorted table, and whether the table has the value."""
    index = tf.minimum(tf.searchsorted(table, values), len(table) - 1)
    return index, tf.equal(tf.gather(table, index), values)


def _indices_in_rows(ragged):
    """Return the index of each value in its row."""
    index = tf.range(tf.size(ragged.values, out_type=tf.int64))
    return index - tf.gather(ragged.row_starts(), ragged.value_rowids())


def _keep(ragged, is_kept):
    return tf.ragged.boolean_mask(ragged, ragged.with_values(is_kept))


def _split(texts):
    """Split texts (B,) into words, ragged (B, None)."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD)
    runs = tf.strings.regex_replace(texts, f"({alphanumeric_class()}+)", MARK + rb"\1" + MARK)
    words = tf.strings.split(runs, MARK)
    index = _indices_in_rows(words)
    is_end = tf.equal(index, 0) | tf.equal(index, tf.gather(words.row_lengths(), words.value_rowids()) - 1)
    # A single space between words is implicit. At either end of a text it is a word.
    return _keep(words, tf.not_equal(words.values, "") & (tf.not_equal(words.values, " ") | is_end))


def _unescape(words):
    """Replace the escape sequences in words by the original characters."""
    marked = tf.strings.regex_replace(words, r"\\(u|\\|[0-9]+;)", MARK + rb"\1" + MARK)
    parts = tf.strings.split(marked, MARK)
    is_escape = tf.equal(_indices_in_rows(parts) % 2, 1)  # every second part is an escape sequence
    letters = parts.values
    is_number = is_escape & tf.not_equal(letters, "u") & tf.not_equal(letters, "\\")
    fits = is_number & (tf.strings.length(letters) < 10)
    digits = tf.strings.regex_replace(tf.where(fits, letters, str(ord(UNDEFINED))), ";", "")
    codes = tf.strings.to_number(digits, tf.int32)
    valid = (codes <= sys.maxunicode) & ((codes < 0xD800) | (codes > 0xDFFF))
    characters = tf.strings.unicode_encode(tf.where(valid, codes, ord(UNDEFINED))[:, None], "UTF-8")
    letters = tf.where(is_escape & tf.equal(letters, "u"), "_", letters)
    return tf.strings.reduce_join(parts.with_values(tf.where(is_number, characters, letters)), axis=-1)


def _join(words):
    """Join words, ragged (B, None), to texts (B,), with a space between consecutive alphanumeric words."""
    alphanumeric = tf.strings.regex_full_match(words.values, alphanumeric_class() + r"(?s).*")
    before = tf.concat([[False], alphanumeric[:-1]], axis=0)[: tf.size(alphanumeric)] & (_indices_in_rows(words) > 0)
    spaced = tf.where(alphanumeric & before, tf.strings.join([" ", words.values]), words.values)
    return tf.strings.reduce_join(words.with_values(spaced), axis=-1)


@functools.cache
def alphanumeric_class() -> str:
    """Return a character class of letters and numbers for TensorFlow regular expressions.

    The class lists code points, because TensorFlow and Python may use different versions of Unicode.
    """
    ranges, first = [], None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code))[0] in "LN"
        if inside and first is None:
            first = code
        if not inside and first is not None:
            ranges.append(f"\\x{{{first:x}}}-\\x{{{code - 1:x}}}")
            first = None
    return f"[{''.join(ranges)}]"
