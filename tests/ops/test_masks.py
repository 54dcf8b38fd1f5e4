"""The dense masks of the library equal the twins, and masks are read at pairs of positions without being expanded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.oracle import definitions
from tf_sparse_attention.ops import masks
from tf_sparse_attention.ops.groups import groups_of
from tf_sparse_attention.patterns import Blocks, Call, Hashed, ImageBlocks, Stride, Summary, Window

LENGTH = st.integers(1, 24)


def dense(pattern, num_queries, num_keys, causal, known=None):
    return pattern.dense(Call(1, num_queries, num_keys, causal), known)


def assert_same(mask, twin):
    np.testing.assert_array_equal(np.broadcast_to(ops.convert_to_numpy(mask), np.shape(twin)), twin)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 30), st.booleans())
def test_the_dense_window_equals_its_twin(num_queries, num_keys, window, causal):
    expected = definitions.window(num_queries, num_keys, window, causal)
    assert_same(dense(Window(window), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_dense_blocks_equal_their_twin(num_queries, num_keys, block_size, before, after, causal):
    expected = definitions.local_blocks(num_queries, num_keys, block_size, before, after, causal)
    assert_same(dense(Blocks(block_size, before, after), num_queries, num_keys, causal), expected)


PAIR = st.tuples(st.integers(0, 2), st.integers(0, 2))


@draws(33, 100)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 12),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(PAIR, PAIR),
    st.sampled_from(["raster", "blocks"]),
    st.booleans(),
    st.booleans(),
)
def test_the_dense_blocks_of_an_image_equal_their_twin(num_queries, num_keys, width, shape, around, order, cut, causal):
    height = max(num_queries, num_keys) // width + 1 if cut else None
    expected = definitions.image_blocks(num_queries, num_keys, width, shape, *around, causal, order, height)
    assert_same(dense(ImageBlocks(width, shape, *around, order, height), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 30), st.booleans())
def test_the_dense_stride_equals_its_twin(num_queries, num_keys, stride, causal):
    expected = definitions.strided(num_queries, num_keys, stride, "far", causal)
    assert_same(dense(Stride(stride), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 5), st.booleans())
def test_the_dense_summaries_equal_their_twin(num_queries, num_keys, count, num_groups, number, before, causal):
    group = number % num_groups
    block_size = before + num_groups * count
    expected = definitions.fixed(num_queries, num_keys, block_size, count, group, "far", causal)
    assert_same(dense(Summary(block_size, count, group), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 5), st.integers(1, 8), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_dense_band_equals_its_twin(num_queries, num_keys, num_groups, band, causal, masked, seed):
    rng = np.random.default_rng(seed)
    asking, answering = rng.integers(num_groups, size=num_queries), rng.integers(num_groups, size=num_keys)
    exists = rng.random(num_keys) < 0.7 if masked else np.ones(num_keys, bool)
    groups = [group if there else None for group, there in zip(answering.tolist(), exists, strict=True)]
    expected, _ = definitions.bands(asking.tolist(), groups, band, causal)
    # With leading axes.
    asking, answering = np.tile(asking, (2, 3, 1)), np.tile(answering, (2, 3, 1))
    groups = groups_of(asking, num_groups), groups_of(answering, num_groups, exists[None] if masked else None)
    known = {"group": groups[0]}, {"group": groups[1]}
    mask = dense(Hashed(2, band), num_queries, num_keys, causal, known)
    assert_same(mask, np.tile(expected, (2, 3, 1, 1)))


def test_the_causal_mask_shows_the_query_itself():
    assert_same(masks.causal_mask(2, 3), [[True, False, False], [True, True, False]])


def test_a_token_sees_itself_only_when_alone():
    mask = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]], bool)
    assert_same(masks.self_only_when_alone(mask), [[True, False, False], [True, False, False], [False] * 3])


def test_the_masks_of_a_call_are_merged_by_and():
    rng = np.random.default_rng(3)
    pairs, exists = rng.random((2, 1, 7, 9)) < 0.7, [rng.random((2, length)) < 0.7 for length in (7, 9)]
    segments = [rng.integers(-1, 2, (2, length)) for length in (7, 9)]
    pattern = definitions.local_blocks(7, 9, 4, 1, 0, True)
    call = masks.TokenMasks(*exists, pairs, *segments)
    merged = np.broadcast_to(ops.convert_to_numpy(masks.dense_mask(pattern, call)), (2, 2, 7, 9))
    for b, n, i, j in np.ndindex(2, 2, 7, 9):
        seen = pattern[i, j] and exists[0][b, i] and exists[1][b, j] and pairs[b, 0, i, j]
        assert merged[b, n, i, j] == (seen and segments[0][b, i] == segments[1][b, j])


def test_a_call_without_masks_leaves_the_pattern_alone():
    pattern = ops.convert_to_tensor([[True, False]])
    assert masks.dense_mask(pattern, masks.TokenMasks()) is pattern


def test_merging_nothing_is_no_mask():
    assert masks.merge(None, None) is None


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5, 1), (2, 3, 4, 1, 6)),
        ((2, 3, 4, 5, 6), (5, 6)),
        ((2, 1, 4, 1, 6), (4, 5, 6)),
        ((1, 1, 1, 1, 1), (2, 3, 4, 5, 6)),
        ((1, 1, 1, 1, 1), (1, 1)),
        ((2, 3, 1, 5, 1), (1, 3, 4, 5, 6)),
    ],
)
def test_masks_of_five_axes_are_merged_by_and(shapes):
    first, second = (np.random.default_rng(i).random(shape) < 0.5 for i, shape in enumerate(shapes))
    np.testing.assert_array_equal(ops.convert_to_numpy(masks.merge(first, second)), first & second)
    assert masks.with_heads(None) is None
    assert masks.pick_pairs(None, None, None) is None


@pytest.mark.parametrize(("rank", "expected"), [(2, (1, 1, 5, 6)), (3, (2, 1, 5, 6)), (4, (2, 3, 5, 6))])
def test_an_attention_mask_of_any_rank_gets_an_axis_of_heads(rank, expected):
    mask = np.ones({2: (5, 6), 3: (2, 5, 6), 4: (2, 3, 5, 6)}[rank], "int32")
    assert masks.with_heads(mask).shape == expected
    assert masks.with_heads(mask).dtype == "bool"


@pytest.mark.parametrize("shape", [(b, n, t, s) for b in (1, 2) for n in (1, 3) for t in (1, 5) for s in (1, 6)])
def test_pairs_of_a_mask_are_read_as_if_it_were_expanded(shape):
    rng = np.random.default_rng(0)
    mask = rng.random(shape) < 0.5
    query_positions = rng.integers(5, size=(2, 3, 4, 2), dtype="int32")
    key_positions = rng.integers(6, size=(2, 3, 4, 7), dtype="int32")
    picked = ops.convert_to_numpy(masks.pick_pairs(mask, query_positions, key_positions))
    whole = np.broadcast_to(mask, (2, 3, 5, 6))
    for b, n, g in np.ndindex(2, 3, 4):
        expected = whole[b, n][np.ix_(query_positions[b, n, g], key_positions[b, n, g])]
        one = np.broadcast_to(picked, (2, 3, 4) + picked.shape[3:])[b, n, g]
        np.testing.assert_array_equal(np.broadcast_to(one, (2, 7)), expected)


def test_an_attention_mask_that_is_broadcast_is_not_expanded():
    positions = np.zeros((2, 3, 4, 5), "int32")
    assert masks.pick_pairs(np.ones((1, 1, 1, 1), bool), positions, positions).shape == (1, 1, 1, 1, 1)
    assert masks.pick_pairs(np.ones((2, 1, 1, 9), bool), positions[:1, :1], positions[:1, :1]).shape == (2, 1, 4, 1, 5)


def test_positions_outside_a_mask_read_its_edge():
    mask = np.array([[[[True, False, True]]]])
    picked = masks.pick_pairs(mask, np.array([[0]], "int32"), np.array([[-2, 1, 5]], "int32"))
    np.testing.assert_array_equal(ops.convert_to_numpy(picked).ravel(), [True, False, True])
