"""Grids of windows, blocks, strides and summaries and slots of cache policies: what is computed, and at what cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.patterns.small_cases import attend_pattern, column
from tf_sparse_attention.patterns import Dilated, Summary, Window
from tf_sparse_attention.patterns.arrangement import block_grid, window_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, Everything, Ring
from tf_sparse_attention.patterns.first import FirstSlots
from tf_sparse_attention.patterns.group_band import GroupRings
from tf_sparse_attention.patterns.selection import TokenInfo
from tf_sparse_attention.patterns.stride import PhaseGrid, PhaseRings


@pytest.mark.parametrize("causal", [True, False])
def test_windows_of_about_a_block_reach_to_their_ends(causal, subtests):
    positions = np.arange(150)
    zeros, values = column([0] * 150), column(positions**2)  # squares, whose mean tells both ends of a run
    for pattern, window, step in (
        *((Window(window), window, 1) for window in (17, 18, 33)),
        *((Dilated(window, 2), window, 2) for window in (2, 17)),
    ):
        seen = [
            [j for j in positions if abs(i - j) < window * step and (i - j) % step == 0 and (j <= i or not causal)]
            for i in positions
        ]
        found = ops.convert_to_numpy(attend_pattern(pattern, zeros, zeros, values, causal=causal).output)
        with subtests.test(repr(pattern)):
            np.testing.assert_allclose(found[0, 0, :, 0], [np.mean(np.square(keys)) for keys in seen], rtol=1e-5)


@draws(33, 100)
@given(st.integers(1, 4000), st.booleans())
def test_the_grid_of_a_window_covers_it_at_little_cost(window, causal):
    grid = window_grid(10_000, 10_000, window, causal)
    assert 16 <= grid.block_size <= 128
    assert grid.before * grid.block_size >= window - 1
    assert grid.after == (0 if causal else grid.before)
    assert grid.width <= (1 if causal else 2) * (window + 2 * grid.block_size)


def test_a_sequence_shorter_than_a_block_is_one_block_and_a_causal_grid_has_no_blocks_after():
    grid = block_grid(5, 3, 256, 1, 1, causal=False)
    assert (grid.block_size, grid.before, grid.after) == (5, 0, 0)
    assert block_grid(600, 600, 256, 1, 1, causal=True).after == 0


@draws(16, 50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 70))
def test_the_grid_of_a_stride_has_one_row_per_phase(query_length, key_length, stride):
    grid = PhaseGrid(query_length, key_length, stride)
    x = np.arange(1, query_length + 1, dtype="int32")
    placed = ops.convert_to_numpy(grid.queries(x, -1))
    positions = ops.convert_to_numpy(grid.query_positions())
    assert placed.shape == positions.shape == (stride, -(-query_length // stride))
    np.testing.assert_array_equal(placed, np.where(positions < query_length, positions + 1, 0))
    assert np.all(positions % stride == np.arange(stride)[:, None])
    np.testing.assert_array_equal(ops.convert_to_numpy(grid.restore(placed, -1)), x)
    assert ops.convert_to_numpy(grid.key_exists()).sum() == key_length


def test_columns_of_summaries_are_the_last_ones_of_each_block():
    columns = Summary(4, 2).columns
    np.testing.assert_array_equal(columns.take(np.arange(1, 12), -1), [3, 4, 7, 8, 11, 0])
    np.testing.assert_array_equal(columns.positions(3), [2, 3, 6, 7, 10, 11])
    np.testing.assert_array_equal(Summary(4, 1, 3).columns.take(np.arange(1, 12), -1), [1, 5, 9])


class OneEach(CachePolicy):
    """A custom policy with only the required method."""

    def num_slots(self, max_length):
        return max_length


GROWING = [OneEach(), Everything(), Ring(30), PhaseRings(5), PhaseRings(5, 30), GroupRings(3, 30), FirstSlots(30)]


def test_slots_hold_the_length_of_the_cache_and_no_more():
    for policy in GROWING:
        slots = policy.num_slots(10)
        assert policy.has_room(10, slots)
        assert not policy.has_room(11, slots)
    for policy in (Ring(3), PhaseRings(2, 3), GroupRings(3, 3), FirstSlots(3)):  # which reuse slots
        assert policy.has_room(10**6, policy.num_slots(10))


def test_a_query_that_reads_every_slot_reads_them_in_place():
    for policy in (Ring(3), Everything(), PhaseRings(1), PhaseRings(1, 30)):
        assert policy.read(TokenInfo(np.array([[3]]), {}), 30) is None  # indices would copy the whole cache
