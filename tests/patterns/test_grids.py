"""Grids of windows, blocks, strides and summaries and slots of cache policies: what is computed, and at what cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.patterns.small_cases import attend_pattern, column
from tests.programs import differentiate
from tf_sparse_attention.ops.image_positions import Image
from tf_sparse_attention.patterns import Dilated, Window
from tf_sparse_attention.patterns.arrangement import window_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, Everything, Ring
from tf_sparse_attention.patterns.first import FirstSlots
from tf_sparse_attention.patterns.group_band import GroupRings
from tf_sparse_attention.patterns.image import image_grid
from tf_sparse_attention.patterns.selection import TokenInfo
from tf_sparse_attention.patterns.stride import PhaseRings


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
        assert policy.buckets(TokenInfo(np.array([[[3]]]), {}), 30) is None  # indices would copy the whole cache


def test_blocks_that_no_query_can_see_are_not_computed():
    around = (1, 1), (1, 1)
    assert len(image_grid(4096, 4096, Image(64), *around, causal=False).neighbors) == 9
    assert len(image_grid(4096, 4096, Image(64), *around, causal=True).neighbors) == 6
    assert len(image_grid(4096, 4096, Image(64, order="blocks"), *around, causal=True).neighbors) == 5
    small = image_grid(5, 4, Image(3), *around, causal=False)
    assert (small.neighbors, small.image.block_shape) == (((0, 0),), (2, 3))
    assert image_grid(12, 12, Image(3, (2, 8)), *around, causal=False).neighbors == ((-1, 0), (0, 0), (1, 0))


@pytest.mark.full
def test_pixels_are_moved_without_a_gather_forward_and_backward():
    tf = pytest.importorskip("tensorflow")
    grid = image_grid(75, 75, Image(7, (2, 4), "blocks", height=11), (1, 1), (1, 1), causal=True)

    @tf.function
    def there_and_back(x, cotangent):
        moved, gradients = differentiate(lambda x: (grid.keys(x["keys"], -2),), {"keys": x}, cotangent)
        return moved, gradients, grid.restore(grid.queries(x, -2), -2)

    x = tf.TensorSpec((2, 3, 75, 4))
    places = ops.shape(grid.key_positions())
    graph = there_and_back.get_concrete_function(x, tf.TensorSpec((2, 3, *places, 4))).graph
    found = {operation.type for operation in graph.get_operations()}
    assert {"Slice", "Reshape"} <= found
    assert not any(word in kind for kind in found for word in ("Gather", "Scatter", "StridedSlice"))
