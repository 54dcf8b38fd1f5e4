"""Counter-based random numbers: published numbers of Threefry, uniformity, independence."""

import numpy as np
import pytest
from keras import ops

from tests.ops.jax_worker import run_check
from tf_sparse_attention.ops import random_bits
from tf_sparse_attention.ops.random_bits import bits_to_uniform, derived_seed, pair_uniform, random_groups, threefry

# Of the Random123 library, threefry2x32 with 20 rounds: counter, key, result.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def draw(seed, *shape):
    """Return the numbers of all pairs of positions, (..., T, T), for a shape (..., T)."""
    positions = np.broadcast_to(np.arange(shape[-1], dtype="int32"), shape)
    return ops.convert_to_numpy(pair_uniform(seed, positions, positions))


@pytest.mark.parametrize("dtype", ["uint32", "int64"])  # torch with Keras has no uint32
def test_threefry_gives_the_published_numbers(dtype, monkeypatch):
    monkeypatch.setattr(random_bits, "uint32", lambda number: ops.convert_to_tensor(number, dtype=dtype))
    for counter, key, result in KNOWN:
        words = [random_bits.uint32(number) for number in (*key, *counter)]
        assert tuple(int(ops.convert_to_numpy(x)) for x in threefry(*words)) == result


def test_uniform_numbers_are_never_0_or_1():
    ends = ops.convert_to_numpy(bits_to_uniform(ops.convert_to_tensor([0, 2**32 - 1], dtype="uint32")))
    assert ends.dtype == "float32"
    assert ends.tolist() == [2.0**-24, 1 - 2.0**-24]


def test_rows_heads_pairs_and_seeds_have_different_numbers():
    whole = draw(3, 2, 3, 40)
    assert len(np.unique(whole)) > 0.99 * whole.size
    assert (whole == draw(4, 2, 3, 40)).mean() < 1e-3


def test_random_numbers_are_uniform_and_uncorrelated():
    x = draw(0, 1, 1, 400)[0, 0]
    # 160,000 numbers: a tenth of them is 16,000 with a standard deviation of 120.
    assert np.abs(np.histogram(x, 10, (0, 1))[0] - 16_000).max() < 5 * 120
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, x.T[::-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / 400
    # Whether a pair is dropped says nothing of the two pairs that share a query and a key with it.
    low = x < 0.5
    same = low[:-1, :-1] ^ low[1:, :-1] ^ low[:-1, 1:] ^ low[1:, 1:]
    assert abs(same.mean() - 0.5) < 5 * 0.5 / 399


def test_seeds_derived_from_two_seeds_or_for_two_uses_differ():
    seeds = [(seed, *use) for seed in (0, 1, 2, 1000, 2**32) for use in ((0,), (1,), (0, 0), (0, 1), (1000,))]
    derived = [derived_seed(*each) for each in seeds]
    assert len(set(derived)) == len(seeds) and all(0 <= seed < 2**31 for seed in derived)
    assert derived_seed(7, 3) == derived_seed(7, 3) and derived_seed(None, 3) is None


def groups_of_seed(num_heads, length, num_groups, seed):
    positions = ops.arange(length, dtype="int32")[None]
    return ops.convert_to_numpy(random_groups(positions, num_heads, num_groups, seed))


def test_random_groups_depend_on_head_position_and_seed_alone():
    long = groups_of_seed(4, 300, 7, seed=5)
    assert long.shape == (1, 4, 300)
    np.testing.assert_array_equal(long[:, :2, :20], groups_of_seed(2, 20, 7, seed=5))
    assert (long != groups_of_seed(4, 300, 7, seed=6)).mean() > 0.7
    assert (long[0, 0] != long[0, 1]).mean() > 0.7


@pytest.mark.parametrize("seed", [-3, 2**40])
def test_random_groups_are_spread_evenly(seed):
    drawn = groups_of_seed(2, 4000, 8, seed)
    assert (drawn.min(), drawn.max(), drawn.dtype) == (0, 7, "int32")
    for head in drawn[0]:
        # 500 are expected of each; five standard deviations are 105.
        assert np.abs(np.bincount(head, minlength=8) - 500).max() < 105
        # Neighbours agree by chance alone, 500 times in 4000.
        assert abs((head[1:] == head[:-1]).sum() - 500) < 105


def test_random_groups_on_jax_are_the_same(run_jax):
    expected = groups_of_seed(3, 40, 5, seed=123456789).tolist()
    assert run_check(run_jax, "random_groups_of_a_seed") == expected
