"""Clustered attention: an approximation of dense attention with the same weights, and the seeds of hashing."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import normal
from tf_sparse_attention.layers import ClusteredAttention, LocalAttention, LSHAttention, RoutingAttention
from tf_sparse_attention.ops.clustered_attention import find_top_keys


def dense_layer(x, num_heads=2, key_dim=4):
    keras.utils.set_random_seed(0)
    layer = keras.layers.MultiHeadAttention(num_heads, key_dim)
    layer.build(x.shape, x.shape)
    for weight in layer.weights:
        weight.assign(keras.random.normal(weight.shape, seed=1))
    return layer


def clustered_of(dense, x, **options):
    layer = ClusteredAttention(2, 4, seed=0, **options)
    layer.build(x.shape)
    layer.copy_projections(dense)
    return layer


def test_all_keys_as_the_best_keys_is_dense_attention():
    x, num_clusters = normal(2, 40, 8), 4
    dense = dense_layer(x)
    mask = np.arange(40) < [[40], [7]]
    for top_k in (40, 100):
        layer = clustered_of(dense, x, num_clusters=num_clusters, top_k=top_k)
        output, weights = layer(x, query_mask=mask, return_attention_scores=True)
        expected, expected_weights = dense(x, x, query_mask=mask, value_mask=mask, return_attention_scores=True)
        for row, length in enumerate((40, 7)):
            np.testing.assert_allclose(output[row, :length], expected[row, :length], rtol=0, atol=2e-5)
            np.testing.assert_allclose(weights[row, :, :length], expected_weights[row, :, :length], rtol=0, atol=2e-6)


def test_the_best_keys_are_found_among_tiny_weights():
    weights = np.full((1, 1, 1, 40), 1e-12, "float32")
    weights[..., 3], weights[..., 39] = 1 - 1e-7, 1e-9
    best = find_top_keys(ops.convert_to_tensor(weights), None, top_k=2)
    assert sorted(np.asarray(best.positions).ravel()) == [3, 39] and np.all(best.valid)


def test_projections_are_copied_into_layers_that_have_the_same():
    x = normal(2, 40, 8)
    dense, unbuilt = dense_layer(x), ClusteredAttention(2, 4, num_clusters=4, seed=0)
    unbuilt.copy_projections(dense)
    np.testing.assert_array_equal(unbuilt(x), clustered_of(dense, x, num_clusters=4)(x))
    for other in (LocalAttention(3, 4), RoutingAttention(2, 4, num_clusters=2, cluster_size=8)):
        with pytest.raises(ValueError, match=r"`attention` must be built and have the projections of this layer"):
            other.copy_projections(dense)
    with pytest.raises(ValueError, match=r"`attention` must be built"):
        unbuilt.copy_projections(LocalAttention(2, 4))


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [
        (LSHAttention, {"num_buckets": 4, "bucket_size": 8}, "rotations"),
        (ClusteredAttention, {"num_clusters": 4}, "planes"),
    ],
)
def test_axes_and_planes_of_hashing_follow_the_seed_and_are_not_trained(make, arguments, name):
    layers = [make(2, 4, **arguments, seed=seed) for seed in (1, 1, 2)]
    for layer in layers:
        layer.build((2, 30, 8))
    drawn, again, apart = (layer.non_trainable_weights[-1] for layer in layers)
    np.testing.assert_array_equal(drawn, again)
    assert drawn.name == name and not np.array_equal(drawn, apart)
