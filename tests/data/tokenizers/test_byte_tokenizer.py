"""Byte tokenizer: ids, round trips, tensors and graphs."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.data import ByteTokenizer

TOKENIZER = ByteTokenizer()
IDS = st.lists(st.integers(0, 257), max_size=20)
tokenize_in_graph = tf.function(TOKENIZER.tokenize, [tf.TensorSpec([None], tf.string)])
detokenize_in_graph = tf.function(TOKENIZER.detokenize, [tf.RaggedTensorSpec([None, None], tf.int32)])
detokenize_dense_in_graph = tf.function(TOKENIZER.detokenize, [tf.TensorSpec([None, None], tf.int32)])


def test_a_byte_is_its_value_plus_two():
    np.testing.assert_array_equal(TOKENIZER.tokenize("Hé"), [72 + 2, 0xC3 + 2, 0xA9 + 2])
    np.testing.assert_array_equal(TOKENIZER.tokenize(bytes([0, 255])), [2, 257])
    np.testing.assert_array_equal(ByteTokenizer.from_config(TOKENIZER.get_config()).tokenize(tf.constant("H")), [74])
    assert (TOKENIZER.pad_id, TOKENIZER.start_id, TOKENIZER.end_id, TOKENIZER.vocabulary_size) == (0, 0, 1, 258)


@draws(50, 100)
@given(st.binary())
def test_any_bytes_and_text_have_a_round_trip(content):
    ids, text = TOKENIZER.tokenize(content), content.decode("utf-8", errors="replace")
    assert ids.dtype == np.int32
    assert TOKENIZER.detokenize_bytes(ids) == content
    assert TOKENIZER.detokenize(TOKENIZER.tokenize(text)) == text


def test_special_ids_are_left_out_and_half_a_character_is_replaced():
    assert TOKENIZER.detokenize([0, 74, 1, 107, 1, 0, 0]) == "Hi"
    assert TOKENIZER.detokenize([]) == ""
    assert TOKENIZER.detokenize(TOKENIZER.tokenize("aé")[:-1]) == "a\ufffd"
    # A graph cannot raise for ids outside the vocabulary.
    assert TOKENIZER.detokenize(tf.constant([-1, 74, 258, 107, 99999])).numpy() == b"Hi"


@draws(20, 100)
@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(IDS, min_size=1, max_size=5))
def test_a_graph_agrees_with_python(texts, rows):
    batch = tokenize_in_graph(tf.constant(texts, tf.string))
    assert batch.dtype == tf.int32
    assert batch.to_list() == [TOKENIZER.tokenize(text).tolist() for text in texts]
    ids = tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)
    expected = [bytes(number - 2 for number in row if number >= 2) for row in rows]
    assert [TOKENIZER.detokenize_bytes(row) for row in rows] == expected
    assert detokenize_in_graph(ids).numpy().tolist() == expected
    assert detokenize_dense_in_graph(ids.to_tensor()).numpy().tolist() == expected


def test_invalid_texts_and_ids_are_errors(subtests):
    for text in (None, 3, ["a"], tf.constant([["a"]]), tf.constant([1])):
        with subtests.test("text", text=text), pytest.raises(ValueError, match="`text`"):
            TOKENIZER.tokenize(text)
    outside = [258], [-1, 5], np.array([3, 300])
    for ids in (*outside, [1.5], [[3, 4]], 7, tf.constant([1.0]), tf.constant(1)):
        with subtests.test("ids", ids=ids), pytest.raises(ValueError, match="`ids`"):
            TOKENIZER.detokenize(ids)
