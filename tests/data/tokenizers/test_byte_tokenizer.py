"""Byte tokenizer: ids, round trips, tensors and graphs."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tf_sparse_attention.data import ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_a_byte_is_its_value_plus_two():
    np.testing.assert_array_equal(TOKENIZER.tokenize("Hé"), [72 + 2, 0xC3 + 2, 0xA9 + 2])
    np.testing.assert_array_equal(TOKENIZER.tokenize(bytes([0, 255])), [2, 257])


def test_special_ids_are_zero_and_one_and_the_vocabulary_holds_258():
    assert (TOKENIZER.pad_id, TOKENIZER.start_id, TOKENIZER.end_id, TOKENIZER.vocabulary_size) == (0, 0, 1, 258)


@given(st.text())
def test_any_text_has_a_round_trip(text):
    assert TOKENIZER.detokenize(TOKENIZER.tokenize(text)) == text


@given(st.binary())
def test_any_bytes_have_a_round_trip(content):
    ids = TOKENIZER.tokenize(content)
    assert ids.dtype == np.int32
    assert TOKENIZER.detokenize_bytes(ids) == content


@given(st.lists(st.integers(0, 257)))
def test_all_ids_of_the_vocabulary_are_valid(ids):
    content = bytes(number - 2 for number in ids if number >= 2)
    assert TOKENIZER.detokenize_bytes(ids) == content
    assert TOKENIZER.detokenize(ids) == content.decode("utf-8", errors="replace")


def test_special_ids_are_left_out_of_text():
    assert TOKENIZER.detokenize([0, 74, 1, 107, 1, 0, 0]) == "Hi"


def test_half_a_character_becomes_the_replacement_character():
    assert TOKENIZER.detokenize(TOKENIZER.tokenize("aé")[:-1]) == "a\ufffd"


@pytest.mark.parametrize("ids", [[258], [-1, 5], np.array([3, 300])])
def test_an_id_outside_the_vocabulary_is_an_error(ids):
    with pytest.raises(ValueError, match=r"`ids` must be in \[0, 258\). Received: ids from"):
        TOKENIZER.detokenize(ids)


@pytest.mark.parametrize("ids", [[1.5], [[3, 4]], 7, []])
def test_ids_must_be_a_flat_sequence_of_integers(ids):
    if ids == []:
        assert TOKENIZER.detokenize(ids) == ""
        return
    with pytest.raises(ValueError, match=r"`ids` must be a flat sequence of integers. Received: ids="):
        TOKENIZER.detokenize(ids)


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_text_must_be_text(text):
    with pytest.raises(ValueError, match=r"`text` must be str, bytes or a string tensor. Received: text="):
        TOKENIZER.tokenize(text)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_graph_ids_equal_python_ids(texts):
    ragged = tokenize_in_graph(tf.constant(texts, tf.string))
    assert ragged.dtype == tf.int32
    assert ragged.to_list() == [TOKENIZER.tokenize(text).tolist() for text in texts]


@given(st.lists(st.lists(st.integers(0, 257), max_size=20), min_size=1, max_size=5))
def test_graph_text_equals_python_bytes(rows):
    ids = tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)
    expected = [TOKENIZER.detokenize_bytes(row) for row in rows]
    assert detokenize_in_graph(ids).numpy().tolist() == expected
    assert detokenize_dense_in_graph(ids.to_tensor()).numpy().tolist() == expected


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
def tokenize_in_graph(texts):
    return TOKENIZER.tokenize(texts)


@tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
def detokenize_in_graph(ids):
    return TOKENIZER.detokenize(ids)


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
def detokenize_dense_in_graph(ids):
    return TOKENIZER.detokenize(ids)


def test_a_scalar_tensor_gives_a_vector_and_back():
    ids = TOKENIZER.tokenize(tf.constant("Hé"))
    np.testing.assert_array_equal(ids, TOKENIZER.tokenize("Hé"))
    assert TOKENIZER.detokenize(ids).numpy().decode() == "Hé"


def test_tensor_ids_outside_the_vocabulary_are_left_out():
    assert TOKENIZER.detokenize(tf.constant([-1, 74, 258, 107, 99999])).numpy() == b"Hi"


def test_a_tensor_must_hold_strings_of_rank_zero_or_one():
    for text in (tf.constant([["a"]]), tf.constant([1])):
        with pytest.raises(ValueError, match=r"`text` must be a string tensor of rank 0 or 1. Received: text="):
            TOKENIZER.tokenize(text)


def test_a_tensor_of_ids_must_hold_integers_of_rank_one_or_two():
    for ids in (tf.constant([1.0]), tf.constant(1)):
        with pytest.raises(ValueError, match=r"`ids` must be an integer tensor of rank 1 or 2. Received: ids="):
            TOKENIZER.detokenize(ids)


def test_the_tokenizer_works_in_a_tf_data_pipeline():
    dataset = tf.data.Dataset.from_tensor_slices(["one", "", "é"]).map(TOKENIZER.tokenize)
    assert [ids.tolist() for ids in dataset.as_numpy_iterator()] == [
        TOKENIZER.tokenize(text).tolist() for text in ("one", "", "é")
    ]


def test_a_saved_model_contains_the_tokenizer(tmp_path):
    class Echo(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            return TOKENIZER.detokenize(TOKENIZER.tokenize(texts))

    tf.saved_model.save(Echo(), str(tmp_path))
    echo = tf.saved_model.load(str(tmp_path))
    assert echo(tf.constant(["one", "", "é"])).numpy().tolist() == [b"one", b"", "é".encode()]


def test_config_makes_an_equal_tokenizer():
    again = ByteTokenizer.from_config(TOKENIZER.get_config())
    np.testing.assert_array_equal(again.tokenize("text"), TOKENIZER.tokenize("text"))
