"""Inputs, targets and weights of windows, by hand."""

import numpy as np
import tensorflow as tf

from tf_sparse_attention.data import ByteTokenizer, evaluation_batches, pack_windows

A, B, C, END = 99, 100, 101, 1


def packed(row, **arguments):
    inputs, targets, weights = pack_windows(tf.constant([row], tf.int32), **arguments)
    assert inputs.pop("padding_mask")[0].numpy().tolist() == [token != 0 for token in row]
    return {name: value[0].numpy().tolist() for name, value in {**inputs, "targets": targets, "w": weights}.items()}


def test_two_documents_and_padding_by_hand():
    assert packed([A, B, END, C, END, 0]) == {
        "token_ids": [0, A, B, 0, C, 0],
        "segment_ids": [1, 1, 1, 2, 2, 0],
        "targets": [A, B, END, C, END, 0],
        "w": [1, 1, 1, 1, 1, 0],
    }


def test_a_window_that_starts_inside_a_document_starts_without_context():
    assert packed([B, END, C]) == {
        "token_ids": [0, B, 0],
        "segment_ids": [1, 1, 2],
        "targets": [B, END, C],
        "w": [1] * 3,
    }


def test_empty_documents_are_segments_of_one():
    assert packed([END, END, C])["segment_ids"] == [1, 2, 3]
    assert packed([END, END, C])["token_ids"] == [0, 0, 0]


def test_a_plain_stream_has_no_segments_and_shows_the_end_id():
    assert packed([A, END, C, END, 0], use_packing=False) == {
        "token_ids": [0, A, END, C, 0],
        "targets": [A, END, C, END, 0],
        "w": [1, 1, 1, 1, 0],
    }


def test_an_empty_row_has_no_segment_and_no_weight():
    assert packed([0, 0]) == {"token_ids": [0, 0], "segment_ids": [0, 0], "targets": [0, 0], "w": [0, 0]}


def test_where_there_is_no_padding_there_is_no_mask_of_it():
    assert set(pack_windows(tf.constant([[A, END]]), padded=False)[0]) == {"token_ids", "segment_ids"}


def test_types_are_int32_and_the_weights_float32():
    inputs, targets, weights = pack_windows(tf.constant([[A, END]], tf.int32), padded=False)
    assert {tensor.dtype for tensor in (*inputs.values(), targets)} == {tf.int32}
    assert weights.dtype == tf.float32


def test_a_packed_document_is_read_as_it_would_be_alone(make_store):
    documents = [b"first", b"", b"second one", b"third"]
    store = make_store(documents)
    ((inputs, targets, _),) = evaluation_batches(store, 1, store.num_tokens)
    segments = inputs["segment_ids"][0].numpy()
    for number, document in enumerate(documents, start=1):
        ids = [*ByteTokenizer().tokenize(document), END]
        np.testing.assert_array_equal(inputs["token_ids"][0][segments == number], [0, *ids[:-1]])
        np.testing.assert_array_equal(targets[0][segments == number], ids)
