"""The dense reference mask of each pattern equals its definition in the oracle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.oracle import definitions
from tf_sparse_attention.ops.gather import token_groups
from tf_sparse_attention.patterns import Blocks, Call, Hashed, ImageBlocks, Stride, Summary, Window
from tf_sparse_attention.patterns.engine.head_plans import Leaf
from tf_sparse_attention.patterns.group_band import GroupSelection

LENGTH = st.integers(1, 24)


def dense(pattern, num_queries, num_keys, causal, selection=None):
    return Leaf(pattern, 0).dense(Call(1, num_queries, num_keys, causal), selection)


def assert_same(mask, expected):
    np.testing.assert_array_equal(np.broadcast_to(ops.convert_to_numpy(mask), np.shape(expected)), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 30), st.booleans())
def test_the_dense_window_and_stride_equal_their_definitions(num_queries, num_keys, size, causal):
    lengths = num_queries, num_keys
    assert_same(dense(Window(size), *lengths, causal), definitions.window(*lengths, size, causal))
    assert_same(dense(Stride(size), *lengths, causal), definitions.strided(*lengths, size, "far", causal))


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 9), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_dense_blocks_equal_their_definition(num_queries, num_keys, block_size, before, after, causal):
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
def test_dense_blocks_of_an_image_are_their_definition(num_queries, num_keys, width, shape, around, order, cut, causal):
    height = max(num_queries, num_keys) // width + 1 if cut else None
    expected = definitions.image_blocks(num_queries, num_keys, width, shape, *around, causal, order, height)
    assert_same(dense(ImageBlocks(width, shape, *around, order, height), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 5), st.booleans())
def test_the_dense_summaries_are_their_definition(num_queries, num_keys, count, num_groups, number, before, causal):
    group = number % num_groups
    block_size = before + num_groups * count
    expected = definitions.fixed(num_queries, num_keys, block_size, count, group, "far", causal)
    assert_same(dense(Summary(block_size, count, group), num_queries, num_keys, causal), expected)


@draws(33, 100)
@given(LENGTH, LENGTH, st.integers(1, 5), st.integers(1, 8), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_dense_band_is_its_definition(num_queries, num_keys, num_groups, band, causal, masked, seed):
    rng = np.random.default_rng(seed)
    asking, answering = rng.integers(num_groups, size=num_queries), rng.integers(num_groups, size=num_keys)
    exists = rng.random(num_keys) < 0.7 if masked else np.ones(num_keys, bool)
    groups = [group if there else None for group, there in zip(answering.tolist(), exists, strict=True)]
    expected, _ = definitions.bands(asking.tolist(), groups, band, causal)
    # With leading axes.
    asking, answering = np.tile(asking, (2, 3, 1)), np.tile(answering, (2, 3, 1))
    groups = token_groups(asking, num_groups), token_groups(answering, num_groups, exists[None] if masked else None)
    mask = dense(Hashed(2, band), num_queries, num_keys, causal, GroupSelection(*groups))
    assert_same(mask, np.tile(expected, (2, 3, 1, 1)))
