"""Groups that depend on head, position and seed alone."""

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.ops.random_groups import random_groups


def groups_of_seed(num_heads, length, num_groups, seed):
    positions = ops.arange(length, dtype="int32")[None]
    return ops.convert_to_numpy(random_groups(positions, num_heads, num_groups, seed))


def test_random_groups_depend_on_head_position_and_seed_alone():
    long = groups_of_seed(4, 300, 7, seed=5)
    assert long.shape == (1, 4, 300)
    np.testing.assert_array_equal(long[:, :2, :20], groups_of_seed(2, 20, 7, seed=5))
    assert (long != groups_of_seed(4, 300, 7, seed=6)).mean() > 0.7
    assert (long[0, 0] != long[0, 1]).mean() > 0.7


@pytest.mark.parametrize("seed", [0, 1, -3, 2**31 - 1, 2**40])
def test_random_groups_are_spread_evenly(seed):
    drawn = groups_of_seed(2, 4000, 8, seed)
    assert drawn.min() == 0
    assert drawn.max() == 7
    assert keras.backend.standardize_dtype(drawn.dtype) == "int32"
    for head in drawn[0]:
        # 500 are expected of each; five standard deviations are 105.
        assert np.abs(np.bincount(head, minlength=8) - 500).max() < 105
        # Neighbours agree by chance alone, 500 times in 4000.
        assert abs((head[1:] == head[:-1]).sum() - 500) < 105


def test_random_groups_on_jax_are_the_same(on_jax):
    assert on_jax["groups"] == groups_of_seed(3, 40, 5, seed=123456789).tolist()
