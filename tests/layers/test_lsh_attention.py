"""LSH attention: buckets, chunks and rounds, in addition to the contracts of all layers."""

import warnings

import numpy as np
import pytest

from tests.contracts import normal, with_random_weights
from tf_sparse_attention.layers import ClusteredAttention, LSHAttention

X = normal(2, 30, 8)


def built(**options):
    return ready(LSHAttention(2, 4, **{"num_buckets": 4, "bucket_size": 5, "seed": 0, **options}))


def ready(layer):
    layer.build(X.shape)
    return with_random_weights(layer)


def test_chunks_under_a_causal_mask_warn_once_that_they_are_not_causal():
    layer, band = built(selection="chunks"), built()
    assert band.pattern.causal_selection is True and layer.pattern.causal_selection is False
    with pytest.warns(UserWarning, match=r"LSHAttention \(HashedChunk\) under a causal mask is not causal"):
        layer(X, use_causal_mask=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(X, use_causal_mask=True)
        band(X, use_causal_mask=True)


@pytest.mark.parametrize("kind", ["lsh", "clustered"])
def test_axes_and_planes_follow_the_seed_and_are_not_trained(kind):
    make = built if kind == "lsh" else lambda seed: ready(ClusteredAttention(2, 4, seed=seed))
    one, same, other = (make(seed=seed) for seed in (1, 1, 2))
    (drawn,), (again,), (apart,) = (layer.non_trainable_weights[-1:] for layer in (one, same, other))
    np.testing.assert_array_equal(drawn, again)
    assert drawn.name in ("rotations", "planes") and not np.array_equal(drawn, apart)
