"""Masks are merged by logical and, and gathered at pairs of positions without broadcasting."""

import itertools

import numpy as np
from keras import ops

from tests.oracle import definitions
from tf_sparse_attention.ops import masks


def assert_same(mask, expected):
    np.testing.assert_array_equal(np.broadcast_to(ops.convert_to_numpy(mask), np.shape(expected)), expected)


def test_the_causal_mask_shows_the_query_itself():
    assert_same(masks.causal_mask(2, 3), [[True, False, False], [True, True, False]])


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


def test_masks_of_five_axes_are_merged_by_and():
    for shapes in [
        ((2, 3, 4, 5, 1), (2, 3, 4, 1, 6)),
        ((2, 1, 4, 1, 6), (4, 5, 6)),
        ((1, 1, 1, 1, 1), (2, 3, 4, 5, 6)),
        ((0, 3, 1, 5, 1), (1, 3, 1, 5, 6)),
        ((1, 1, 6), (1, 1, 1, 1, 6)),
    ]:
        first, second = (np.random.default_rng(i).random(shape) < 0.5 for i, shape in enumerate(shapes))
        merged = masks.merge(ops.convert_to_tensor(first), ops.convert_to_tensor(second))
        np.testing.assert_array_equal(ops.convert_to_numpy(merged), first & second)
    assert masks.merge(None, None) is None


def test_pairs_of_a_mask_are_read_as_if_it_were_expanded():
    for shape in itertools.product((1, 2), (1, 3), (1, 5), (1, 6)):
        rng = np.random.default_rng(0)
        mask = rng.random(shape) < 0.5
        query_positions = rng.integers(5, size=(2, 3, 4, 2), dtype="int32")
        key_positions = rng.integers(6, size=(2, 3, 4, 7), dtype="int32")
        picked = ops.convert_to_numpy(masks.take_mask_pairs(mask, query_positions, key_positions))
        whole = np.broadcast_to(mask, (2, 3, 5, 6))
        for b, n, g in np.ndindex(2, 3, 4):
            expected = whole[b, n][np.ix_(query_positions[b, n, g], key_positions[b, n, g])]
            one = np.broadcast_to(picked, (2, 3, 4) + picked.shape[3:])[b, n, g]
            np.testing.assert_array_equal(np.broadcast_to(one, (2, 7)), expected)


def test_an_attention_mask_that_is_broadcast_is_not_expanded():
    positions = np.zeros((2, 3, 4, 5), "int32")
    assert masks.take_mask_pairs(np.ones((1, 1, 1, 1), bool), positions, positions).shape == (1, 1, 1, 1, 1)
    picked = masks.take_mask_pairs(np.ones((2, 1, 1, 9), bool), positions[:1, :1], positions[:1, :1])
    assert picked.shape == (2, 1, 4, 1, 5)


def test_positions_outside_a_mask_read_its_edge():
    mask = np.array([[[[True, False, True]]]])
    picked = masks.take_mask_pairs(mask, np.array([[0]], "int32"), np.array([[-2, 1, 5]], "int32"))
    np.testing.assert_array_equal(ops.convert_to_numpy(picked).ravel(), [True, False, True])
