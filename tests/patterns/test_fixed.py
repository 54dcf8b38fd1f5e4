"""Fixed attention on cases a reader can check, and at its edges."""

import functools

import numpy as np
import pytest
from keras import ops

from tests.patterns.small_cases import attend_pattern, column, means
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.patterns import Blocks, Summary

PARTS = ["local", "far", "merged"]
EVERYTHING = [1, 3 / 2, 7 / 3, 15 / 4, 31 / 5, 63 / 6]  # means of all values up to each


def pattern_of(columns, part):
    near, far = Blocks(columns[0], 0, 0), Summary(*columns)
    return {"local": near, "far": far, "merged": near | far}[part]


def fixed(columns, part, **options):
    return functools.partial(attend_pattern, pattern_of(columns, part), **options)


def assert_means(attention, expected, **options):
    np.testing.assert_allclose(means(attention, **options), expected, rtol=1e-6)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_the_local_part_is_the_own_block_up_to_the_query_if_causal():
    assert_means(fixed((3, 1), "local", causal=True), [1, 3 / 2, 7 / 3, 8, 24 / 2, 56 / 3])
    assert_means(fixed((3, 1), "local"), [7 / 3] * 3 + [56 / 3] * 3)


def test_the_far_part_is_the_last_column_of_each_block_up_to_the_query_if_causal():
    assert_means(fixed((3, 1), "far", causal=True), [0, 0, 4, 4, 4, 36 / 2])
    assert_means(fixed((3, 1), "far"), [36 / 2] * 6)


def test_merged_is_one_mean_of_block_and_summaries_in_which_each_key_counts_once():
    # 0 | 0 1 | 0 1 2 | 2 3 | 2 3 4 | 2 3 4 5
    assert_means(fixed((3, 1), "merged", causal=True), [1, 3 / 2, 7 / 3, 12 / 2, 28 / 3, 60 / 4])
    assert_means(fixed((3, 1), "merged"), [39 / 4] * 3 + [60 / 4] * 3)


def test_more_summaries_are_the_last_columns_side_by_side():
    # 1 | 1 2 | 1 2 | 1 2 4 | 1 2 4 5
    assert_means(fixed((3, 2), "far", causal=True), [0, 2, 6 / 2, 6 / 2, 22 / 3, 54 / 4])


def test_the_next_group_has_the_columns_before():
    assert_means(fixed((3, 1, 1), "far"), [18 / 2] * 6)
    assert_means(fixed((3, 1, 2), "far"), [9 / 2] * 6)
    assert_means(fixed((3, 1, 2), "far", causal=True), [1, 1, 1, 9 / 2, 9 / 2, 9 / 2])
    assert_means(fixed((6, 2, 1), "far"), [12 / 2] * 6)


def test_the_group_does_not_matter_to_the_local_part():
    assert means(fixed((3, 1, 2), "local")) == means(fixed((3, 1, 0), "local"))


def test_merged_weighs_near_and_far_keys_in_one_softmax():
    # Scores log 3, 0, 0 of a summary and two keys of the own block: weights 3/5, 1/5, 1/5.
    query, key = column([0, 0, 0, 1]), column([0, np.log(3), 0, 0])
    attended = fixed((2, 1), "merged", causal=True, return_weights=True)(query, key, column([0, 10, 20, 30]))
    np.testing.assert_allclose(ops.convert_to_numpy(attended.weights)[0, 0, 3], [0, 0.6, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(attended.output)[0, 0, 3, 0], 16, rtol=1e-6)


@pytest.mark.parametrize("block_size", [1, 2, 4, 6])
def test_where_all_columns_are_summaries_everything_is_seen(block_size):
    for part in ("far", "merged"):
        assert_means(fixed((block_size, block_size), part, causal=True), EVERYTHING)
        assert_means(fixed((block_size, block_size), part), [63 / 6] * 6)


def test_a_last_block_without_its_summary_has_none():
    assert_means(fixed((4, 1), "far"), [8] * 6)
    assert_means(fixed((4, 1), "merged", causal=True), [1, 3 / 2, 7 / 3, 15 / 4, 24 / 2, 56 / 3])
    assert_means(fixed((4, 3), "far"), [46 / 4] * 6)  # the columns 1, 2, 3 and 5


@pytest.mark.parametrize("causal", [False, True])
def test_a_sequence_without_summaries_gives_zeros_far_and_the_block_merged(causal):
    tf = pytest.importorskip("tensorflow")
    inputs = tf.unstack(tf.constant(normal(3, 1, 2, 5, 4)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        found = {part: fixed((8, 2), part, causal=causal)(*inputs).output for part in PARTS}
    np.testing.assert_array_equal(found["far"], 0)
    np.testing.assert_allclose(found["merged"], found["local"], rtol=1e-6, atol=1e-6)
    gradients = {part: np.stack(tape.gradient(found[part], inputs)) for part in PARTS}
    np.testing.assert_array_equal(gradients["far"], 0)
    np.testing.assert_allclose(gradients["merged"], gradients["local"], rtol=1e-6, atol=1e-6)


def test_queries_beyond_fewer_keys_see_their_summaries():
    short = {"values": [1, 3, 5], "num_queries": 6}
    assert_means(fixed((2, 1), "far", causal=True), [0, 3, 3, 3, 3, 3], **short)
    assert_means(fixed((2, 1), "local", causal=True), [1, 2, 5, 5, 0, 0], **short)
    assert_means(fixed((2, 1), "merged", causal=True), [1, 2, 4, 4, 3, 3], **short)


def test_more_keys_than_queries_are_seen_unless_the_call_is_causal():
    assert_means(fixed((2, 1), "far"), [42 / 3] * 2, num_queries=2)
    assert_means(fixed((2, 1), "merged"), [43 / 4] * 2, num_queries=2)
    assert_means(fixed((2, 1), "merged", causal=True), [1, 3 / 2], num_queries=2)


def test_masked_keys_and_other_documents_are_left_out_near_and_far():
    keys = TokenMasks(key_mask=np.array([[True, False, True, True, False, True]]))
    assert_means(fixed((2, 1), "merged", causal=True, masks=keys), [1, 1, 4, 6, 8, 20])
    segments = np.array([[7, 7, 7, -3, -3, 7]])
    documents = TokenMasks(query_segments=segments, key_segments=segments)
    assert_means(fixed((2, 1), "merged", causal=True, masks=documents), [1, 3 / 2, 3, 8, 12, 17])


def test_a_masked_pair_is_left_out_near_and_far():
    mask = np.ones((1, 1, 6, 6), bool)
    mask[0, 0, 5, [1, 4]] = False
    masks = TokenMasks(attention_mask=mask)
    assert_means(fixed((2, 1), "merged", causal=True, masks=masks), [1, 3 / 2, 3, 14 / 3, 26 / 3, 40 / 2])


def test_relative_distances_of_the_far_part_are_in_tokens_and_clipped():
    # Distances -2, -1 .. 2 add 10, 20 .. 50; the last query's keys are at 0, -2 and -4.
    position = Relative(np.zeros((5, 1), "float32"), np.array([[10], [20], [30], [40], [50]], "float32"))
    expected = [0, 32, 22, (12 + 38) / 2, (12 + 28) / 2, (12 + 18 + 62) / 3]
    assert_means(fixed((2, 1), "far", causal=True, position=position), expected)


@pytest.mark.parametrize("part", PARTS)
def test_the_log_sum_exp_is_that_of_the_keys_seen(part):
    # Left out is the first query, which has no summary to see.
    counts = {"local": [2, 1, 2, 1, 2], "far": [1, 1, 2, 2, 3], "merged": [2, 2, 3, 3, 4]}
    zeros = column([0] * 6)
    attended = fixed((2, 1), part, causal=True, return_log_sum_exp=True)(zeros, zeros, zeros)
    np.testing.assert_allclose(ops.convert_to_numpy(attended.log_sum_exp)[0, 0, 1:], np.log(counts[part]), atol=1e-6)


@pytest.mark.parametrize("part", PARTS)
def test_dropout_leaves_out_or_scales_up_single_weights(part):
    # With the unit matrix as values the output is the weights that were used.
    query, key = normal(2, 4, 2, 60, 8)
    unit = np.tile(np.eye(60, dtype="float32"), (4, 2, 1, 1))
    options = {"causal": True, "return_weights": True}
    whole = fixed((6, 2), part, **options)(query, key, unit)
    dropped = fixed((6, 2), part, dropout=Dropout(0.25, 1), **options)(query, key, unit)
    weights, used = ops.convert_to_numpy(whole.weights), ops.convert_to_numpy(dropped.output)
    np.testing.assert_array_equal(ops.convert_to_numpy(dropped.weights), weights)
    seen, there = weights > 0, used > 0
    assert abs(there[seen].mean() - 0.75) < 0.06  # five standard deviations of 1,700 draws
    np.testing.assert_allclose(used[there], weights[there] / 0.75, rtol=1e-5)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("cut", [1, 23, 24])
def test_later_tokens_change_no_bit_and_get_no_gradient(part, cut):
    tf = pytest.importorskip("tensorflow")
    first, second = normal(2, 3, 1, 2, 50, 4)
    changed = np.concatenate([first[..., :cut, :], second[..., cut:, :]], axis=-2)
    outputs = []
    for numbers in (first, changed):
        inputs = tf.unstack(tf.constant(numbers))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            early = fixed((4, 2), part, causal=True)(*inputs).output[:, :, :cut]
        for gradient in tape.gradient(early, inputs):
            assert np.abs(gradient.numpy()[:, :, cut:]).max() == 0
        outputs.append(early.numpy())
    np.testing.assert_array_equal(*outputs)
    assert outputs[0].any() or (part, cut) == ("far", 1)


def test_columns_take_the_summaries_of_each_block_and_say_where_they_are():
    columns = Summary(4, 2).columns
    np.testing.assert_array_equal(columns.take(np.arange(1, 12), -1), [3, 4, 7, 8, 11, 0])
    np.testing.assert_array_equal(columns.positions(3), [2, 3, 6, 7, 10, 11])
    np.testing.assert_array_equal(Summary(4, 1, 3).columns.take(np.arange(1, 12), -1), [1, 5, 9])
