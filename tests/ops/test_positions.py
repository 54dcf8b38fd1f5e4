"""Position encodings on hand-worked cases: relative positions, rotary embedding and ALiBi."""

import numpy as np
import pytest
from keras import ops

from tests.oracle import attention
from tf_sparse_attention.ops.positions import (
    Alibi,
    Distances,
    NoPosition,
    Relative,
    Rotary,
    alibi_slopes,
    skew,
)
from tf_sparse_attention.ops.rotary import RotarySettings

OFFSETS = np.array([[-2, -1, 0, 1], [-3, -2, -1, 0]])  # two queries beside four keys


def numbers(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("block", [(1, 4), (4, 1), (3, 5)])
def test_skewing_selects_the_distance_of_each_slot(block):
    queries, keys = block
    x = np.random.default_rng(0).normal(size=(2, 3, queries, queries + keys - 1))
    expected = np.stack([x[..., t, queries - 1 - t : queries - 1 - t + keys] for t in range(queries)], axis=-2)
    np.testing.assert_array_equal(numbers(skew(x, block)), expected)


def test_the_key_side_scores_each_distance_with_its_row_and_clips_the_far_ones():
    table = np.array([[100.0], [10.0], [1.0]])  # distance -1 and below, 0, 1 and above
    query = np.array([[[[[1.0], [2.0]]]]])
    bias = numbers(Relative(table).score_bias(query, Distances(offsets=OFFSETS)))
    np.testing.assert_array_equal(bias[0, 0, 0], [[100, 100, 10, 1], [200, 200, 200, 20]])


def test_no_position_changes_nothing():
    x = np.ones((1, 1, 2, 4), "float32")
    position = NoPosition()
    assert position.rotate(x, np.arange(2)) is x
    assert position.score_bias(x, Distances(offsets=OFFSETS)) is None
    assert position.value_bias(Distances(offsets=OFFSETS)) is None
    assert Relative(np.zeros((3, 1))).value_bias(Distances(offsets=OFFSETS)) is None  # without a table of values


def test_rotary_equals_its_definition_with_any_base_and_position():
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    positions = np.array([0, 7, 300, 1, 8191], "int32")
    turned = numbers(Rotary(RotarySettings(max_wavelength=100.0)).rotate(x[None, None], positions))[0, 0]
    # 8191 radians are known to 5e-4 in float32.
    np.testing.assert_allclose(turned, attention.rotate(x, positions, base=100.0), rtol=0, atol=2e-3)


def test_alibi_slopes_equal_their_definition():
    for num_heads in (1, 2, 3, 5, 8, 12, 16):
        np.testing.assert_allclose(alibi_slopes(num_heads), attention.slopes(num_heads), rtol=1e-6)


def test_alibi_subtracts_the_slope_times_the_distance():
    bias = numbers(Alibi(2).score_bias(None, Distances(offsets=OFFSETS)))
    np.testing.assert_allclose(bias[:, 0] * [[[16]], [[256]]], -np.abs([OFFSETS, OFFSETS]), rtol=1e-6)


def test_alibi_uses_distances_in_tokens():
    tokens = np.array([[[[[-9, 4]]]]])
    bias = numbers(Alibi(1).score_bias(None, Distances(offsets=np.array([[-1, 0]]), tokens=tokens)))
    np.testing.assert_allclose(bias[0, 0, 0, 0] * 256, [-9, -4], rtol=1e-6)


def test_relative_uses_distances_in_tokens_only_with_by_token():
    table = np.array([[3.0], [5.0], [7.0]])
    query, distances = np.ones((1, 1, 1, 1, 1)), Distances(np.array([[0]]), tokens=np.array([[[[[9]]]]]))
    assert numbers(Relative(table).score_bias(query, distances)).ravel() == [5]
    assert numbers(Relative(table, by_token=True).score_bias(query, distances)).ravel() == [7]
