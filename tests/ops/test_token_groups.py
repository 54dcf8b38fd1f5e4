"""Groups of tokens: the highest score, numbers of documents, and the order by group."""

import numpy as np
from keras import ops

from tf_sparse_attention.ops.gather import segment_ranks
from tf_sparse_attention.ops.shapes import argmax_last_axis
from tf_sparse_attention.patterns.group_band import sort_queries_and_keys


def best(scores):
    found = argmax_last_axis(ops.convert_to_tensor(scores, "float32"))
    assert found.dtype == "int32"
    return ops.convert_to_numpy(found)


def test_the_best_group_has_the_highest_score():
    scores = np.random.default_rng(0).normal(size=(2, 3, 50, 7))
    np.testing.assert_array_equal(best(scores), scores.argmax(-1))


def test_ties_have_the_lowest_group_and_zeros_have_no_sign():
    assert best([[1, 2, 2], [0, 0, 0], [-0.0, 0.0, -1.0], [-np.inf] * 3]).tolist() == [1, 0, 0, 0]


def test_a_row_with_nan_has_a_valid_group():
    assert 0 <= best([[np.nan, 1.0, 2.0]])[0] < 3


def test_documents_are_numbered_in_the_order_of_their_ids():
    ids = np.array([[50, -7, 50, 2**31 - 1, -(2**31), -7]])
    assert ops.convert_to_numpy(segment_ranks(ids)[0]).tolist() == [[2, 1, 2, 3, 0, 1]]


def test_the_merged_order_puts_the_key_of_a_position_before_its_query():
    merged = sort_queries_and_keys(*(np.array([[x]], "int32") for x in ([1, 2], [1, 1, 2])))
    # Group 1: key 0, query 0, key 1. Group 2: query 1, key 2. The query that does not exist comes last.
    assert ops.convert_to_numpy(merged.positions)[0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert ops.convert_to_numpy(merged.is_query)[0, 0].tolist() == [False, True, False, True, False, True]
    assert ops.convert_to_numpy(merged.last_key)[0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert ops.convert_to_numpy(merged.query_slots)[0, 0].tolist() == [1, 3]
