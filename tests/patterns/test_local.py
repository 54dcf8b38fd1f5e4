"""Local attention on cases a reader can check, and at its edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.patterns.small_cases import attend_pattern
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.patterns import Blocks, Dilated, Window
from tf_sparse_attention.patterns.arrangement import block_grid, window_grid

VALUES = [1, 2, 4, 8, 16, 32]


def column(x):
    """Return numbers as one head of one row with vectors of size 1: (1, 1, T, 1)."""
    return np.array(x, "float32").reshape(1, 1, -1, 1)


def means(pattern, num_queries=6, values=VALUES, **options):
    """Attend with zero queries, for which the output is the plain mean of the values seen."""
    zeros = column([0] * num_queries)
    output = attend_pattern(pattern, zeros, column([0] * len(values)), column(values), **options).output
    return ops.convert_to_numpy(output)[0, 0, :, 0].tolist()


def test_a_causal_window_of_two_is_the_query_and_the_token_before():
    assert means(Window(2), causal=True) == pytest.approx([1, 1.5, 3, 6, 12, 24])


def test_a_window_of_two_on_both_sides_is_three_tokens():
    assert means(Window(2), values=[3, 6, 9, 0, 0, 0]) == pytest.approx([4.5, 6, 5, 3, 0, 0])


def test_a_window_of_one_is_the_token_itself():
    assert means(Window(1)) == pytest.approx(VALUES)
    assert means(Window(1), causal=True) == pytest.approx(VALUES)


def test_a_window_longer_than_the_sequence_is_full_attention():
    assert means(Window(100), values=[1, 2, 3, 4, 5, 6]) == pytest.approx([3.5] * 6)
    assert means(Window(100), causal=True, values=[2, 4, 6, 8, 10, 12]) == pytest.approx([2, 3, 4, 5, 6, 7])


def test_causal_blocks_see_the_block_before_and_their_own_up_to_the_query():
    expected = [1, 1.5, 7 / 3, 15 / 4, 28 / 3, 15]
    np.testing.assert_allclose(means(Blocks(2, 1), causal=True), expected, rtol=1e-6)


def test_blocks_on_both_sides_see_whole_blocks():
    expected = [3.75, 3.75, 10.5, 10.5, 15, 15]
    assert means(Blocks(2, 1)) == pytest.approx(expected)
    assert means(Blocks(2, 0)) == pytest.approx([1.5, 1.5, 6, 6, 24, 24])


def test_a_last_block_that_is_not_full_sees_no_padding():
    assert means(Blocks(2, 0), num_queries=5, values=[1, 2, 4, 8, 16]) == [
        1.5,
        1.5,
        6,
        6,
        16,
    ]


def test_blocks_beyond_a_shorter_key_sequence_give_zeros():
    assert means(Blocks(2, 1, 0), num_queries=6, values=[1, 3]) == [
        2,
        2,
        2,
        2,
        0,
        0,
    ]


def test_the_softmax_weighs_by_the_score():
    # exp(1 log 3) against exp(0): weights 3/4 and 1/4.
    query, key = column([1, 1]), column([np.log(3), 0])
    output, weights, _ = attend_pattern(Window(2), query, key, column([8, 4]), return_weights=True)
    np.testing.assert_allclose(ops.convert_to_numpy(output).ravel(), [7, 7], rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(weights)[0, 0], [[0.75, 0.25]] * 2, rtol=1e-6)


def test_relative_positions_add_the_value_of_the_distance():
    # Distances -1 and 0 add 10 and 20; the first query sees itself alone, the others two tokens.
    position = Relative(np.zeros((3, 1), "float32"), np.array([[10], [20], [30]], "float32"))
    assert means(Window(2), causal=True, position=position) == pytest.approx([21, 16.5, 18, 21, 27, 39])


def test_masked_keys_are_left_out_of_the_mean():
    masks = TokenMasks(key_mask=np.array([[True, False, True, False, False, True]]))
    assert means(Window(2), causal=True, masks=masks) == pytest.approx([1, 1, 4, 4, 0, 32])


def test_a_masked_pair_is_left_out_of_the_mean():
    mask = np.ones((1, 1, 6, 6), bool)
    mask[0, 0, 3, 2] = False
    masks = TokenMasks(attention_mask=mask)
    assert means(Window(2), causal=True, masks=masks) == pytest.approx([1, 1.5, 3, 8, 12, 24])


def test_documents_do_not_see_each_other():
    segments = np.array([[7, 7, -3, -3, -3, 7]])
    masks = TokenMasks(query_segments=segments, key_segments=segments)
    assert means(Window(2), causal=True, masks=masks) == pytest.approx([1, 1.5, 4, 6, 12, 32])


def test_the_weights_returned_are_those_before_dropout():
    query, key, value = np.random.default_rng(0).normal(size=(3, 2, 2, 40, 4)).astype("float32")
    whole, weights, _ = attend_pattern(Window(9), query, key, value, return_weights=True)
    dropped, same, _ = attend_pattern(Window(9), query, key, value, dropout=Dropout(0.5, 3), return_weights=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(weights), ops.convert_to_numpy(same))
    assert np.abs(ops.convert_to_numpy(whole) - ops.convert_to_numpy(dropped)).max() > 0.1


def test_the_gradient_from_later_tokens_is_exactly_zero():
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    query, key, value = tf.unstack(tf.constant(rng.normal(size=(3, 1, 2, 50, 4)), tf.float32))
    for pattern in (Window(7), Blocks(8, 2)):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            early = attend_pattern(pattern, query, key, value, causal=True)[0][:, :, :20]
        for gradient in tape.gradient(early, [query, key, value]):
            assert np.abs(gradient.numpy()[:, :, 20:]).max() == 0


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [2, 17, 18, 33, 34])
@pytest.mark.parametrize("dilation", [None, 2])
def test_windows_of_about_a_block_reach_to_their_ends(window, causal, dilation):
    positions = np.arange(150)
    pattern, step = (Window(window), 1) if dilation is None else (Dilated(window, dilation), dilation)
    seen = [
        [j for j in positions if abs(i - j) < window * step and (i - j) % step == 0 and (j <= i or not causal)]
        for i in positions
    ]
    # Squares, whose mean tells both ends of a run.
    found = means(pattern, num_queries=150, values=positions**2, causal=causal)
    np.testing.assert_allclose(found, [np.mean(np.square(keys)) for keys in seen], rtol=1e-5)


@draws(33, 100)
@given(st.integers(1, 4000), st.booleans())
def test_the_grid_of_a_window_covers_it_at_little_cost(window, causal):
    grid = window_grid(10_000, 10_000, window, causal)
    assert 16 <= grid.block_size <= 128
    assert grid.before * grid.block_size >= window - 1
    assert grid.after == (0 if causal else grid.before)
    assert grid.width <= (1 if causal else 2) * (window + 2 * grid.block_size)


def test_a_sequence_shorter_than_a_block_is_one_block():
    grid = block_grid(5, 3, 256, 1, 1, causal=False)
    assert (grid.block_size, grid.before, grid.after) == (5, 0, 0)


def test_a_causal_grid_has_no_blocks_after():
    assert block_grid(600, 600, 256, 1, 1, causal=True).after == 0
