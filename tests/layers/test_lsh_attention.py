"""LSH attention: buckets, chunks and rounds, in addition to the contracts of all layers."""

import warnings

import keras
import numpy as np
import pytest

from tests.contracts import normal, with_random_weights
from tf_sparse_attention.layers import LSHAttention
from tf_sparse_attention.ops.hashing import lsh_buckets

X = normal(2, 30, 8)


def built(**options):
    layer = LSHAttention(2, 4, **{"num_buckets": 4, "bucket_size": 5, "seed": 0, **options})
    layer.build(X.shape)
    return with_random_weights(layer)


def test_a_bucket_is_the_nearest_axis_or_its_opposite():
    x = np.array([[3, 1], [1, 2], [-5, 4], [0.1, -0.2], [-300, 200]], "float32")[None, None]
    axes = np.eye(2, dtype="float32")[None, None]
    (found,) = lsh_buckets(keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(axes))
    np.testing.assert_array_equal(found, [[[0, 1, 2, 3, 2]]])


def test_chunks_under_a_causal_mask_warn_once_that_they_are_not_causal():
    layer, band = built(selection="chunks"), built()
    assert band.pattern.causal_selection is True and layer.pattern.causal_selection is False
    with pytest.warns(UserWarning, match=r"LSHAttention \(HashedChunk\) under a causal mask is not causal"):
        layer(X, use_causal_mask=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(X, use_causal_mask=True)
        band(X, use_causal_mask=True)


def test_equal_rounds_equal_one_round():
    layer, once = built(num_rounds=2), built(num_rounds=1)
    rotations = np.asarray(layer.rotations)
    layer.rotations.assign(np.stack([rotations[0], rotations[0]]))
    once.copy_projections(layer)
    once.rotations.assign(rotations[:1])
    np.testing.assert_allclose(layer(X), once(X), rtol=0, atol=2e-6)


def test_axes_follow_the_seed_and_are_not_trained():
    one, same, other = (built(seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.rotations, same.rotations)
    assert not np.array_equal(one.rotations, other.rotations)
    assert not any("rotations" in weight.path for weight in one.trainable_weights)
