"""The edit distance equals the textbook dynamic program; words are compared by their characters."""

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest

from tests.draws import draws
from tf_sparse_attention.ops.edit_distance import edit_distance, hash_words


def table_distance(reference, hypothesis):
    """Wagner and Fischer 1974."""
    row = list(range(len(hypothesis) + 1))
    for i, one in enumerate(reference, 1):
        before, row = row, [i]
        for j, other in enumerate(hypothesis, 1):
            row.append(min(before[j - 1] + (one != other), before[j] + 1, row[j - 1] + 1))
    return row[-1]


def padded(rows):
    width = max(map(len, rows), default=0)
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], "int32").reshape(len(rows), width)


rows = st.lists(st.lists(st.integers(1, 3), max_size=6), min_size=3, max_size=3)


@hypothesis.given(rows, rows)
@draws(10, 200)
def test_the_distance_equals_the_dynamic_program(references, hypotheses):
    found = np.asarray(edit_distance(padded(references), padded(hypotheses)))
    expected = [table_distance(*pair) for pair in zip(references, hypotheses, strict=True)]
    assert found.tolist() == expected


def test_words_are_equal_if_their_characters_are():
    text = "  the cat the  cart tac "
    words = np.asarray(hash_words(np.array([[ord(letter) for letter in text] + [0, 0]]), ord(" ")))[0]
    assert words[:, 0].tolist() == [3, 3, 3, 4, 3, *[0] * (len(words) - 5)]
    kinds = [tuple(word) for word in words[:5]]
    assert kinds[0] == kinds[2] and len(set(kinds)) == 4
    assert (words[:, 1:] >= 0).all()


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs a graph of TensorFlow")
def test_rows_of_unknown_width_have_the_same_words_and_distances():
    import tensorflow as tf

    unknown = tf.TensorSpec((None, None), tf.int32)

    @tf.function(input_signature=[unknown, unknown])
    def both(references, hypotheses):
        words = [hash_words(rows, 1) for rows in (references, hypotheses)]
        return words[0], edit_distance(*words), edit_distance(references, hypotheses)

    references = np.array([[2, 3, 1, 2, 3, 1, 4], [1, 5, 0, 0, 0, 0, 0]], "int32")
    hypotheses = np.array([[2, 3, 1, 3, 2], [0, 0, 0, 0, 0]], "int32")
    words, of_words, of_labels = both(references, hypotheses)
    np.testing.assert_array_equal(words, hash_words(references, 1))
    assert of_words.numpy().tolist() == [2, 1] and of_labels.numpy().tolist() == [3, 2]
    assert [x.numpy().tolist() for x in both(references, hypotheses[:, :0])[1:]] == [[3, 1], [7, 2]]
