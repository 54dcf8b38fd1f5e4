"""Groups of tokens and their order, and blocks of clusters with a slot for each token."""

import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.ops.clustered_attention import ClusterBlocks
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


@pytest.mark.parametrize(("length", "num_clusters"), [(1, 3), (5, 50), (40, 1), (130, 3)])
def test_every_token_has_a_slot_in_a_block_of_its_cluster(length, num_clusters):
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, num_clusters + 1, (2, 3, length), "int32")  # the last number is padding
    blocks = ClusterBlocks.from_clusters(ops.convert_to_tensor(clusters), num_clusters, block_size=16)
    x = rng.normal(size=(2, 3, length, 4)).astype("float32")
    restored = ops.convert_to_numpy(blocks.restore(blocks.arrange(x)))
    np.testing.assert_array_equal(restored, np.where((clusters < num_clusters)[..., None], x, 0))
    own = ops.convert_to_numpy(blocks.cluster_of_block)
    held = np.take_along_axis(clusters, ops.convert_to_numpy(blocks.tokens), axis=-1).reshape(*own.shape, -1)
    present = ops.convert_to_numpy(blocks.present).reshape(held.shape)
    assert np.all((held == own[..., None])[present]) and present.sum() == (clusters < num_clusters).sum()


def test_few_tokens_have_few_short_blocks():
    blocks = ClusterBlocks.from_clusters(ops.zeros((1, 1, 3), "int32"), 100)
    assert blocks.cluster_of_block.shape == (1, 1, 3) and blocks.tokens.shape == (1, 1, 9)
    assert ClusterBlocks.from_clusters(ops.zeros((1, 1, 320), "int32"), 9).cluster_of_block.shape == (1, 1, 20)
