"""Clustered attention: its best keys and the weights of dense attention, and the seeds of hashing."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import normal
from tf_sparse_attention.layers import ClusteredAttention, LocalAttention, LSHAttention, RoutingAttention
from tf_sparse_attention.ops.clustered_attention import find_top_keys


def test_the_best_keys_are_found_among_tiny_weights():
    weights = np.full((1, 1, 1, 40), 1e-12, "float32")
    weights[..., 3], weights[..., 39] = 1 - 1e-7, 1e-9
    best = find_top_keys(ops.convert_to_tensor(weights), None, top_k=2)
    assert sorted(np.asarray(best.positions).ravel()) == [3, 39] and np.all(best.valid)


def test_projections_are_copied_into_layers_that_have_the_same():
    x, dense = normal(2, 40, 8), keras.layers.MultiHeadAttention(2, 4, bias_initializer="random_normal")
    dense.build(x.shape, x.shape)
    built, unbuilt = (ClusteredAttention(2, 4, num_clusters=4, seed=0) for _ in range(2))
    built.build(x.shape)
    for layer in (built, unbuilt):
        layer.copy_projections(dense)
        layer(x)
        for copied, weight in zip(layer.trainable_weights, dense.weights, strict=True):
            np.testing.assert_array_equal(copied, weight)
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
