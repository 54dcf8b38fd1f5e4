"""Strided attention on cases a reader can check, and at its edges."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.patterns.small_cases import attend_pattern, column, means
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.patterns import Stride, Window
from tf_sparse_attention.patterns.stride import PhaseGrid

PARTS = ["local", "far", "merged"]


def pattern_of(stride, part):
    return {"local": Window(stride), "far": Stride(stride), "merged": Window(stride) | Stride(stride)}[part]


def strided(stride, part, **options):
    return functools.partial(attend_pattern, pattern_of(stride, part), **options)


def assert_means(attention, expected, **options):
    np.testing.assert_allclose(means(attention, **options), expected, rtol=1e-6)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_the_local_part_is_a_window_as_long_as_the_stride():
    assert_means(strided(2, "local", causal=True), [1, 1.5, 3, 6, 12, 24])


def test_the_far_part_counts_strides_back_from_the_query_itself():
    assert_means(strided(2, "far", causal=True), [1, 2, 5 / 2, 10 / 2, 21 / 3, 42 / 3])


def test_merged_is_one_mean_of_both_parts_in_which_the_query_itself_counts_once():
    # 0 | 0 1 | 0 1 2 | 1 2 3 | 0 2 3 4 | 1 3 4 5
    assert_means(strided(2, "merged", causal=True), [1, 3 / 2, 7 / 3, 14 / 3, 29 / 4, 58 / 4])


def test_on_both_sides_the_parts_reach_to_both_ends():
    assert_means(strided(3, "far"), [9 / 2, 18 / 2, 36 / 2] * 2)
    assert_means(strided(2, "local"), [3 / 2, 7 / 3, 14 / 3, 28 / 3, 56 / 3, 48 / 2])
    # 0 1 2 3 | 0 1 2 3 4 | all | all | 1 2 3 4 5 | 2 3 4 5
    assert_means(strided(3, "merged"), [15 / 4, 31 / 5, 63 / 6, 63 / 6, 62 / 5, 60 / 4])


def test_merged_weighs_near_and_far_keys_in_one_softmax():
    # Scores log 3, 0, 0 of a key a stride back and two in the window: weights 3/5, 1/5, 1/5.
    query, key = column([0, 0, 1]), column([np.log(3), 0, 0])
    attended = strided(2, "merged", causal=True, return_weights=True)(query, key, column([10, 20, 30]))
    np.testing.assert_allclose(ops.convert_to_numpy(attended.weights)[0, 0, 2], [0.6, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(attended.output)[0, 0, 2, 0], 16, rtol=1e-6)


def test_with_a_stride_of_one_the_window_is_the_query_and_the_far_part_is_everything():
    everything = [1, 3 / 2, 7 / 3, 15 / 4, 31 / 5, 63 / 6]
    assert_means(strided(1, "local", causal=True), [1, 2, 4, 8, 16, 32])
    assert_means(strided(1, "far", causal=True), everything)
    assert_means(strided(1, "merged", causal=True), everything)
    assert_means(strided(1, "merged"), [63 / 6] * 6)


@pytest.mark.parametrize("stride", [6, 7, 1000])
def test_with_a_stride_as_long_as_the_sequence_the_far_part_is_the_query_itself(stride):
    assert_means(strided(stride, "far"), [1, 2, 4, 8, 16, 32])
    assert_means(strided(stride, "far", causal=True), [1, 2, 4, 8, 16, 32])
    assert_means(strided(stride, "merged", causal=True), [1, 3 / 2, 7 / 3, 15 / 4, 31 / 5, 63 / 6])


def test_queries_beyond_fewer_keys_see_those_whole_strides_back():
    short = {"values": [1, 3], "num_queries": 6}
    assert_means(strided(2, "far", causal=True), [1, 3, 1, 3, 1, 3], **short)
    assert_means(strided(2, "local", causal=True), [1, 2, 3, 0, 0, 0], **short)
    assert_means(strided(2, "merged", causal=True), [1, 2, 2, 3, 1, 3], **short)
    assert_means(strided(4, "far"), [1, 3, 0, 0, 1, 3], **short)


def test_more_keys_than_queries_are_seen_unless_the_call_is_causal():
    assert_means(strided(2, "far"), [21 / 3, 42 / 3], num_queries=2)
    assert_means(strided(3, "merged"), [15 / 4, 31 / 5], num_queries=2)
    assert_means(strided(2, "merged", causal=True), [1, 3 / 2], num_queries=2)


def test_a_row_of_an_image_sees_what_is_above_it():
    # Three rows of two pixels: the second pixel of the last row sees those above it.
    assert means(strided(2, "far", causal=True), values=[0, 3, 0, 6, 0, 9])[-1] == 6


def test_masked_keys_and_other_documents_are_left_out_near_and_far():
    keys = TokenMasks(key_mask=np.array([[False, True, True, True, False, True]]))
    assert_means(strided(2, "merged", causal=True, masks=keys), [0, 2, 3, 14 / 3, 6, 14])
    segments = np.array([[7, 7, -3, 7, -3, 7]])
    documents = TokenMasks(query_segments=segments, key_segments=segments)
    assert_means(strided(2, "merged", causal=True, masks=documents), [1, 3 / 2, 4, 5, 10, 14])


def test_relative_distances_of_the_far_part_are_in_tokens_and_clipped():
    # Distances -2, -1 .. 2 add 10, 20 .. 50; of the last query's keys one is at 0, one at -2, one at -4.
    position = Relative(np.zeros((5, 1), "float32"), np.array([[10], [20], [30], [40], [50]], "float32"))
    expected = [31, 32, (11 + 34) / 2, (12 + 38) / 2, (11 + 14 + 46) / 3, (12 + 18 + 62) / 3]
    assert_means(strided(2, "far", causal=True, position=position), expected)


@pytest.mark.parametrize("part", PARTS)
def test_the_log_sum_exp_is_that_of_the_keys_seen(part):
    counts = {"local": [1, 2, 2, 2, 2, 2], "far": [1, 1, 2, 2, 3, 3], "merged": [1, 2, 3, 3, 4, 4]}
    zeros = column([0] * 6)
    attended = strided(2, part, causal=True, return_log_sum_exp=True)(zeros, zeros, zeros)
    np.testing.assert_allclose(ops.convert_to_numpy(attended.log_sum_exp)[0, 0], np.log(counts[part]), atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_dropout_leaves_out_or_scales_up_single_weights(part):
    # With the unit matrix as values the output is the weights that were used.
    query, key = normal(2, 4, 2, 60, 8)
    unit = np.tile(np.eye(60, dtype="float32"), (4, 2, 1, 1))
    options = {"causal": True, "return_weights": True}
    whole = strided(8, part, **options)(query, key, unit)
    dropped = strided(8, part, dropout=Dropout(0.25, 1), **options)(query, key, unit)
    weights, used = ops.convert_to_numpy(whole.weights), ops.convert_to_numpy(dropped.output)
    np.testing.assert_array_equal(ops.convert_to_numpy(dropped.weights), weights)
    seen, there = weights > 0, used > 0
    assert abs(there[seen].mean() - 0.75) < 0.04  # five standard deviations of 3,000 draws
    np.testing.assert_allclose(used[there], weights[there] / 0.75, rtol=1e-5)


@pytest.mark.parametrize("part", PARTS)
def test_later_tokens_change_no_bit_and_get_no_gradient(part):
    tf = pytest.importorskip("tensorflow")
    first, second = normal(2, 3, 1, 2, 50, 4)
    changed = np.concatenate([first[..., :23, :], second[..., 23:, :]], axis=-2)
    outputs = []
    for numbers in (first, changed):
        inputs = tf.unstack(tf.constant(numbers))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            early = strided(7, part, causal=True)(*inputs).output[:, :, :23]
        for gradient in tape.gradient(early, inputs):
            assert np.abs(gradient.numpy()[:, :, 23:]).max() == 0
            assert np.abs(gradient.numpy()[:, :, :23]).max() > 0
        outputs.append(early.numpy())
    np.testing.assert_array_equal(*outputs)


@draws(16, 50)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 70))
def test_the_grid_puts_each_phase_in_a_row_and_back(query_length, key_length, stride):
    grid = PhaseGrid(query_length, key_length, stride)
    x = np.arange(1, query_length + 1, dtype="int32")
    placed = ops.convert_to_numpy(grid.queries(x, -1))
    positions = ops.convert_to_numpy(grid.query_positions())
    assert placed.shape == positions.shape == (stride, -(-query_length // stride))
    np.testing.assert_array_equal(placed, np.where(positions < query_length, positions + 1, 0))
    assert np.all(positions % stride == np.arange(stride)[:, None])
    np.testing.assert_array_equal(ops.convert_to_numpy(grid.restore(placed, -1)), x)
    assert ops.convert_to_numpy(grid.key_exists()).sum() == key_length
