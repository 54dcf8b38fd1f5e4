"""Grouped-query heads equal heads with copies of the keys, and the layer of Keras."""

import keras
import numpy as np
import pytest

from tests.cases import Case
from tests.contracts import assert_close, compare_with_dense, normal, to_numpy, with_random_weights
from tests.draws import first
from tf_sparse_attention.layers import (
    AllAttention,
    BlockSelectedAttention,
    ClusteredAttention,
    GlobalLocalAttention,
    LocalAttention,
    LSHAttention,
    RoutingAttention,
    SparseAttention,
    StridedAttention,
)
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import InTurn, Nearest, Window

SIZE, LENGTH = 12, 26
ROUTED = {"num_clusters": 3, "cluster_size": 5, "share_qk": False, "seed": 1}
HASHED = {"num_buckets": 4, "bucket_size": 5, "share_qk": False, "seed": 1}
# By name the class, its arguments, and whether its calls are causal.
LAYERS = {
    "nearest": (RoutingAttention, {**ROUTED, "position": "alibi"}, True),
    "selected": (BlockSelectedAttention, {"block_size": 4, "num_blocks": 2, "position": "rotary"}, True),
    "chunks": (LSHAttention, {**HASHED, "num_rounds": 2, "selection": "chunks", "position": "alibi"}, False),
    "window": (LocalAttention, {"window": 6, "position": "relative"}, True),
    "span": (LocalAttention, {"window": 9, "adaptive_span": {"initial": 0.3, "ramp": 4}}, True),
    "strided": (StridedAttention, {"stride": 4, "position": "rotary"}, True),
    "head_split": (AllAttention, {"num_persistent": 3, "window": 6, "variant": "head_split"}, True),
    "top_k": (RoutingAttention, {**ROUTED, "selection": "top_k", "position": "relative"}, False),
    "top_keys": (RoutingAttention, {**ROUTED, "selection": "top_keys", "position": "relative"}, False),
    "improved_clustered": (ClusteredAttention, {"num_clusters": 4, "top_k": 5, "seed": 1}, False),
    "union": (SparseAttention, {"pattern": Window(5) | Nearest(3, 5), "seed": 1, "position": "rotary"}, True),
    "in_turn": (SparseAttention, {"pattern": InTurn((Window(5), Nearest(3, 5))), "seed": 1}, True),
    "global": (GlobalLocalAttention, {"window": 4, "num_first_global": 2}, False),
}


def pair(name, num_key_value_heads=2):
    """Return a layer whose heads share keys, and one whose heads have copies of them."""
    cls, arguments, causal = LAYERS[name]
    layers = cls(4, 4, num_key_value_heads=num_key_value_heads, **arguments), cls(4, 4, **arguments)
    for layer in layers:
        layer.build((2, LENGTH, SIZE))
    for own, other in zip(layers[0].weights, layers[1].weights, strict=True):
        value = to_numpy(own)
        for axis, (size, wanted) in enumerate(zip(own.shape, other.shape, strict=True)):
            value = np.repeat(value, wanted // size, axis)
        other.assign(value)
    return *layers, causal


def masks_of(name):
    rng = np.random.default_rng(2)
    masks = {"query_mask": np.arange(LENGTH) < np.array([[LENGTH], [17]])}
    if name == "improved_clustered":
        return masks
    masks["attention_mask"] = rng.random((2, 4, LENGTH, LENGTH)) < 0.7
    return masks if name in ("top_keys", "global") else {**masks, "segment_ids": np.arange(LENGTH)[None] // [[9], [20]]}


@pytest.mark.parametrize("name", first(list(LAYERS), 2))
@pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")
def test_grouped_heads_equal_heads_with_copies_of_the_keys(name):
    shared, copies, causal = pair(name)
    x = normal(2, LENGTH, SIZE)
    masks = {**masks_of(name), "use_causal_mask": causal}
    results = [layer(x, return_attention_scores=True, **masks) for layer in (shared, copies)]
    for own, other in zip(*results, strict=True):
        assert_close(own, other)
    patterns = [to_numpy(layer.attention_pattern(x, **masks)) for layer in (shared, copies)]
    np.testing.assert_array_equal(*patterns)


def test_a_cache_holds_only_key_heads(subtests):
    for name in ("nearest", "selected", "in_turn"):
        with subtests.test(name):
            cache = pair(name)[0].init_cache(2, LENGTH)
            assert {entry["key"].shape[1] for part, entry in cache.items() if part != "num_tokens"} <= {1, 2}


def test_centroids_follow_the_tokens_of_all_heads_of_a_group():
    shared, copies, _ = pair("nearest", num_key_value_heads=1)
    x = normal(2, LENGTH, SIZE)
    before = to_numpy(shared.centroids)
    for layer in (shared, copies):
        layer(x, use_causal_mask=True, training=True)
    assert shared.centroids.shape == (1, 3, 4)
    assert np.abs(to_numpy(shared.centroids) - before).max() > 1e-5
    counted = 2 * LENGTH * (4 + 1)  # queries of four heads and keys of one
    assert_close(to_numpy(shared._clusters.counts).sum(), 0.999 * 3 + 0.001 * counted, 1e-4)
    assert_close(to_numpy(copies._clusters.counts).sum(), 4 * (0.999 * 3 + 0.001 * 4 * LENGTH), 1e-4)


@pytest.mark.parametrize(("num_key_value_heads", "use_gate"), first([(2, True), (1, False)], 1))
def test_a_full_window_equals_the_layer_of_keras(num_key_value_heads, use_gate):
    dense = keras.layers.GroupQueryAttention(6, 4, num_key_value_heads, use_gate=use_gate)
    x, y = normal(2, LENGTH, SIZE), normal(2, LENGTH, SIZE, seed=1)
    dense.build(x.shape, y.shape)
    layer = LocalAttention(4, 6, window=LENGTH, num_key_value_heads=num_key_value_heads, use_gate=use_gate)
    layer.copy_projections(dense)
    exists = np.arange(LENGTH) < np.array([[LENGTH], [19]])
    seen = np.random.default_rng(0).random((2, LENGTH, LENGTH)) < 0.7
    seen |= np.eye(LENGTH, dtype=bool)
    for inputs, masks in (
        ((x, x), {"use_causal_mask": True}),
        ((x, y), {"value_mask": exists, "attention_mask": seen}),
    ):
        assert_close(layer(*inputs, **masks), dense(*inputs, **masks), 1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads the graph of TensorFlow")
def test_no_array_of_the_graph_repeats_the_keys_of_a_group():
    import tensorflow as tf

    layer, length = StridedAttention(16, 4, stride=4, num_key_value_heads=2), 96
    layer.build((1, length, SIZE))
    heads = [tf.TensorSpec((1, number, length, 4)) for number in (16, 2, 2)]

    @tf.function(input_signature=heads, autograph=False)
    def attend(query, key, value):
        return layer.compute_attention((query, key, value), TokenMasks(), True)[0]

    graph = attend.get_concrete_function().graph
    products = [node for node in graph.get_operations() if node.type == "BatchMatMulV2"]
    assert products
    for node in products:  # of the 16 query heads on one side, of the heads of keys on the other
        assert node.inputs[1].shape[:2].num_elements() <= 2


def test_a_sink_has_a_share_of_every_softmax():
    layer = LocalAttention(2, 4, window=LENGTH, use_sink=True)
    plain = LocalAttention(2, 4, window=LENGTH)
    x = normal(1, LENGTH, SIZE)
    for each in (layer, plain):
        each.build(x.shape)
    plain.set_weights([w for w in layer.get_weights() if w.shape != (2,)])
    layer.head_sinks.assign([-1e4, 1.0])
    weights, whole = (
        to_numpy(each(x, use_causal_mask=True, return_attention_scores=True)[1]) for each in (layer, plain)
    )
    np.testing.assert_allclose(weights[:, 0], whole[:, 0], atol=1e-6)
    assert (weights[:, 1].sum(-1) < 1).all()


SHARED = {
    "nearest": (RoutingAttention, ROUTED | {"share_qk": True, "position": "relative", "attention_scale": 0.7}),
    "union": (SparseAttention, {"pattern": Window(3) | Nearest(3, 5), "share_qk": True, "seed": 1}),
    "lsh": (LSHAttention, HASHED | {"share_qk": True, "num_rounds": 2}),
}


@pytest.mark.parametrize("name", first(list(SHARED), 1))
def test_queries_that_see_only_themselves_ignore_the_sink(name):
    cls, arguments = SHARED[name]
    layer, x = cls(4, 4, use_sink=True, **arguments), normal(2, LENGTH, SIZE)
    layer.build(x.shape)
    with_random_weights(layer, 0)
    compare_with_dense(layer, Case(None, causal=True), x)
    (weights,) = layer(x, use_causal_mask=True, return_attention_scores=True)[1:]
    np.testing.assert_allclose(to_numpy(weights)[..., 0, 0], 1, rtol=0, atol=1e-6)
