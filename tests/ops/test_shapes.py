"""Sequences are split into blocks, paired with neighbor blocks, and joined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tf_sparse_attention.ops import shapes
from tf_sparse_attention.patterns.arrangement import Grid


def numbers(x):
    return ops.convert_to_numpy(x).tolist()


def test_a_sequence_is_cut_into_blocks_with_zeros_at_the_end():
    assert numbers(shapes.split(np.arange(1, 6), 2, -1, 3)) == [[1, 2], [3, 4], [5, 0]]


def test_a_sequence_of_unknown_length_is_cut_into_a_known_number_of_blocks():
    tf = pytest.importorskip("tensorflow")
    # Without autograph, as Keras calls layers: a comparison with an unknown length would be an error.
    cut = tf.function(lambda x: shapes.split(x, 2, -1, 2), [tf.TensorSpec((None,), "int32")])
    for length in (1, 4, 7):
        expected = [[1, 0], [0, 0]] if length == 1 else [[1, 2], [3, 4]]
        assert numbers(cut(np.arange(1, length + 1, dtype="int32"))) == expected


@draws(20, 60)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2))
def test_joining_undoes_splitting(length, block_size, trailing):
    x = np.random.default_rng(0).normal(size=(2, length) + (3,) * trailing)
    axis = -1 - trailing
    cut = shapes.split(x, block_size, axis, -(-length // block_size))
    np.testing.assert_array_equal(ops.convert_to_numpy(shapes.join(cut, axis, length)), x)


def test_keys_are_next_to_the_block_of_their_queries():
    grid = Grid(query_length=5, key_length=5, block_size=2, before=1, after=1)
    assert grid.num_blocks == 3
    assert grid.width == 6
    assert numbers(grid.queries(np.arange(1, 6), -1)) == [[1, 2], [3, 4], [5, 0]]
    assert numbers(grid.keys(np.arange(1, 6), -1)) == [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 0], [3, 4, 5, 0, 0, 0]]
    assert numbers(grid.key_positions()) == [[-2, -1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]]
    assert numbers(grid.query_positions()) == [[0, 1], [2, 3], [4, 5]]
    assert grid.offsets.tolist() == [[-2, -1, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2]]


@pytest.mark.parametrize(("num_queries", "num_keys"), [(4, 7), (9, 1)])
def test_keys_of_another_length_are_cut_to_the_blocks_of_the_queries(num_queries, num_keys):
    grid = Grid(num_queries, num_keys, block_size=3, before=1, after=1)
    keys = ops.convert_to_numpy(grid.keys(np.arange(1, num_keys + 1), -1))
    positions = ops.convert_to_numpy(grid.key_positions())
    inside = (positions >= 0) & (positions < num_keys)
    np.testing.assert_array_equal(keys, np.where(inside, positions + 1, 0))
