"""Grouped-query heads: centroids, caches, sinks and memory. The cases of all contracts include grouped heads."""

import keras
import numpy as np
import pytest

from tests.contracts import assert_close, normal, to_numpy
from tf_sparse_attention.layers import LSHAttention, RoutingAttention, SparseAttention, StridedAttention
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import InTurn, Nearest, Window

SIZE, LENGTH = 12, 26
ROUTED = {"num_clusters": 3, "cluster_size": 5, "seed": 1}
HASHED = {"num_buckets": 4, "bucket_size": 5, "num_rounds": 2, "seed": 1}


def test_a_cache_holds_only_key_heads(subtests):
    for layer in (
        RoutingAttention(4, 4, num_key_value_heads=2, share_qk=False, **ROUTED),
        SparseAttention(4, 4, InTurn((Window(5), Nearest(3, 5))), num_key_value_heads=2, seed=1),
        LSHAttention(4, 4, num_key_value_heads=2, share_qk=False, **HASHED),
    ):
        layer.build((2, LENGTH, SIZE))
        with subtests.test(layer.name):
            cache = layer.init_cache(2, LENGTH)
            assert {entry["key"].shape[1] for part, entry in cache.items() if part != "num_tokens"} <= {1, 2}


def test_centroids_follow_the_tokens_of_all_heads_of_a_group():
    layer, x = RoutingAttention(4, 4, num_key_value_heads=1, share_qk=False, **ROUTED), normal(2, LENGTH, SIZE)
    layer.build(x.shape)
    before = to_numpy(layer.centroids)
    layer(x, use_causal_mask=True, training=True)
    assert layer.centroids.shape == (1, 3, 4)
    assert np.abs(to_numpy(layer.centroids) - before).max() > 1e-5
    counted = 2 * LENGTH * (4 + 1)  # queries of four heads and keys of one
    assert_close(to_numpy(layer._clusters.counts).sum(), 0.999 * 3 + 0.001 * counted, 1e-4)


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads the graph of TensorFlow")
def test_no_array_of_the_graph_repeats_the_keys_of_a_group():
    import tensorflow as tf

    layer, length = StridedAttention(16, 4, stride=4, num_key_value_heads=2), 96
    layer.build((1, length, SIZE))
    heads = [tf.TensorSpec((1, number, length, 4)) for number in (16, 2, 2)]

    @tf.function(input_signature=heads)
    def attend(query, key, value):
        return layer.compute_attention((query, key, value), TokenMasks(), True)[0]

    graph = attend.get_concrete_function().graph
    products = [node for node in graph.get_operations() if node.type == "BatchMatMulV2"]
    assert products
    for node in products:  # of the 16 query heads on one side, of the heads of keys on the other
        assert node.inputs[1].shape[:2].num_elements() <= 2
