"""Axes and planes of hashing, in addition to the contracts of all layers."""

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


@pytest.mark.parametrize("kind", ["lsh", "clustered"])
def test_axes_and_planes_follow_the_seed_and_are_not_trained(kind):
    make = built if kind == "lsh" else lambda seed: ready(ClusteredAttention(2, 4, seed=seed))
    one, same, other = (make(seed=seed) for seed in (1, 1, 2))
    (drawn,), (again,), (apart,) = (layer.non_trainable_weights[-1:] for layer in (one, same, other))
    np.testing.assert_array_equal(drawn, again)
    assert drawn.name in ("rotations", "planes") and not np.array_equal(drawn, apart)
