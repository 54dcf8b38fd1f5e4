"""Patterns of positions on cases that a reader can compute: means of the visible values, and weights.

Queries are zero, so that the output is the mean of the visible values. The values are powers of two, whose means tell
which values are visible.
"""

import functools

import numpy as np
import pytest
from keras import ops

from tests.patterns.small_cases import VALUES, attend_pattern, means
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.patterns import Blocks, Dilated, First, ImageBlocks, Stride, Successors, Summary, Window

EVERYTHING = [1, 3 / 2, 7 / 3, 15 / 4, 31 / 5, 63 / 6]  # means of all values up to each
MERGED_STRIDES, MERGED_SUMMARIES = Window(2) | Stride(2), Blocks(3, 0, 0) | Summary(3, 1)
# Pattern, whether the call is causal, and the means.
SEEN = [
    (Window(1), True, VALUES),
    (Window(2), True, [1, 1.5, 3, 6, 12, 24]),
    (Window(2), False, [3 / 2, 7 / 3, 14 / 3, 28 / 3, 56 / 3, 24]),
    (Window(100), True, EVERYTHING),
    (Dilated(2, 2), True, [1, 2, 5 / 2, 10 / 2, 20 / 2, 40 / 2]),
    (Blocks(2, 1), True, [1, 1.5, 7 / 3, 15 / 4, 28 / 3, 15]),
    (Blocks(2, 1), False, [3.75, 3.75, 10.5, 10.5, 15, 15]),
    (Blocks(4, 0), False, [15 / 4] * 4 + [24] * 2),  # the last block is not full
    (First(2), True, [1, 3 / 2, 3 / 2, 3 / 2, 3 / 2, 3 / 2]),
    (Stride(2), True, [1, 2, 5 / 2, 10 / 2, 21 / 3, 42 / 3]),
    (Stride(3), False, [9 / 2, 18 / 2, 36 / 2] * 2),
    (Stride(7), True, VALUES),
    # 0 | 0 1 | 0 1 2 | 1 2 3 | 0 2 3 4 | 1 3 4 5: the query itself counts once.
    (MERGED_STRIDES, True, [1, 3 / 2, 7 / 3, 14 / 3, 29 / 4, 58 / 4]),
    # 0 1 2 3 | 0 1 2 3 4 | all | all | 1 2 3 4 5 | 2 3 4 5
    (Window(3) | Stride(3), False, [15 / 4, 31 / 5, 63 / 6, 63 / 6, 62 / 5, 60 / 4]),
    (Summary(3, 1), True, [0, 0, 4, 4, 4, 36 / 2]),
    (Summary(3, 2), True, [0, 2, 6 / 2, 6 / 2, 22 / 3, 54 / 4]),
    (Summary(3, 1, 1), False, [18 / 2] * 6),  # the next group has the columns before
    (Summary(3, 1, 2), True, [1, 1, 1, 9 / 2, 9 / 2, 9 / 2]),
    (Summary(4, 1), False, [8] * 6),  # the last block has no summary
    (Summary(4, 3), False, [46 / 4] * 6),  # the columns 1, 2, 3 and 5
    # 0 | 0 1 | 0 1 2 | 2 3 | 2 3 4 | 2 3 4 5
    (MERGED_SUMMARIES, True, [1, 3 / 2, 7 / 3, 12 / 2, 28 / 3, 60 / 4]),
    (MERGED_SUMMARIES, False, [39 / 4] * 3 + [60 / 4] * 3),
    (ImageBlocks(2, (2, 2), (0, 0), (0, 0), "blocks"), True, [1, 3 / 2, 7 / 3, 15 / 4, 16, 24]),
    (Successors(Window(2)), True, [0, 2, 3, 6, 12, 24]),  # the values after the two keys before the query
]
# The same with other numbers of queries and keys: pattern, whether the call is causal, queries, values, means.
OTHER_LENGTHS = [
    (Blocks(2, 1, 0), False, 6, [1, 3], [2, 2, 2, 2, 0, 0]),
    (Window(2), True, 6, [1, 3], [1, 2, 3, 0, 0, 0]),
    (Stride(4), False, 6, [1, 3], [1, 3, 0, 0, 1, 3]),
    (Window(3) | Stride(3), False, 2, VALUES, [15 / 4, 31 / 5]),
    (Summary(2, 1), True, 6, [1, 3, 5], [0, 3, 3, 3, 3, 3]),
    (Blocks(2, 0) | Summary(2, 1), True, 6, [1, 3, 5], [1, 2, 4, 4, 3, 3]),
    (ImageBlocks(2, (1, 2), (1, 0), (0, 0)), False, 6, [1, 3], [2, 2, 2, 2, 0, 0]),
    (ImageBlocks(2, (1, 2), (0, 0), (1, 0)), False, 2, [1, 3, 5, 7, 9, 11], [4, 4]),
]


def assert_means(pattern, expected, values=VALUES, num_queries=None, **options):
    found = means(functools.partial(attend_pattern, pattern, **options), values, num_queries)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_query_gets_the_mean_of_the_values_it_sees(subtests):
    for pattern, causal, expected in SEEN:
        with subtests.test(repr(pattern), causal=causal):
            assert_means(pattern, expected, causal=causal)
    for pattern, causal, num_queries, values, expected in OTHER_LENGTHS:
        with subtests.test(repr(pattern), causal=causal, num_queries=num_queries):
            assert_means(pattern, expected, values, num_queries, causal=causal)


def pairs_without(*pairs):
    mask = np.ones((1, 1, 6, 6), bool)
    mask[0, 0, *np.transpose(pairs)] = False
    return {"attention_mask": mask}


def documents(*segments):
    return dict.fromkeys(("query_segments", "key_segments"), np.array([segments]))


def keys(*exist):
    return {"key_mask": np.array([exist], bool)}


MASKED = [
    (Window(2), keys(1, 0, 1, 0, 0, 1), [1, 1, 4, 4, 0, 32]),
    (Window(2), pairs_without((3, 2)), [1, 1.5, 3, 8, 12, 24]),
    (Window(2), documents(7, 7, -3, -3, -3, 7), [1, 1.5, 4, 6, 12, 32]),
    (Blocks(2, 0) | Summary(2, 1), keys(1, 0, 1, 1, 0, 1), [1, 1, 4, 6, 8, 20]),
    (Blocks(2, 0) | Summary(2, 1), documents(7, 7, 7, -3, -3, 7), [1, 3 / 2, 3, 8, 12, 17]),
    (Blocks(2, 0) | Summary(2, 1), pairs_without((5, 1), (5, 4)), [1, 3 / 2, 3, 14 / 3, 26 / 3, 40 / 2]),
]


def test_masked_keys_pairs_and_other_documents_are_left_out(subtests):
    for pattern, masks, expected in MASKED:
        with subtests.test(repr(pattern), masks=list(masks)):
            assert_means(pattern, expected, causal=True, masks=TokenMasks(**masks))


def test_relative_positions_add_the_value_of_the_clipped_distance_in_tokens():
    # Distances -2, -1 .. 2 add 10, 20 .. 50.
    position = Relative(np.zeros((5, 1), "float32"), np.array([[10], [20], [30], [40], [50]], "float32"))
    for pattern, expected in (
        (Window(2), [31, 26.5, 28, 31, 37, 49]),
        (Stride(2), [31, 32, (11 + 34) / 2, (12 + 38) / 2, (11 + 14 + 46) / 3, (12 + 18 + 62) / 3]),
        (Summary(2, 1), [0, 32, 22, (12 + 38) / 2, (12 + 28) / 2, (12 + 18 + 62) / 3]),
    ):
        assert_means(pattern, expected, causal=True, position=position)


PATTERNS = [Window(8), Stride(8), Window(8) | Stride(8), Summary(6, 2), Blocks(6, 1), ImageBlocks(6, (2, 2))]


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_dropout_leaves_out_or_scales_up_single_weights(subtests):
    # With the unit matrix as values, the output is the weights after dropout.
    query, key = normal(2, 4, 2, 60, 8)
    unit = np.tile(np.eye(60, dtype="float32"), (4, 2, 1, 1))
    for pattern in PATTERNS:
        options = {"causal": True, "return_weights": True}
        whole = attend_pattern(pattern, query, key, unit, **options)
        dropped = attend_pattern(pattern, query, key, unit, dropout=Dropout(0.25, 1), **options)
        weights, used = ops.convert_to_numpy(whole.weights), ops.convert_to_numpy(dropped.output)
        with subtests.test(repr(pattern)):
            np.testing.assert_array_equal(ops.convert_to_numpy(dropped.weights), weights)  # before dropout
            seen, there = weights > 0, used > 0
            assert abs(there[seen].mean() - 0.75) < 0.06  # five standard deviations of 1,700 draws
            np.testing.assert_allclose(used[there], weights[there] / 0.75, rtol=1e-5)


def test_later_tokens_change_no_bit_and_get_no_gradient(subtests):
    tf = pytest.importorskip("tensorflow")
    first, second = normal(2, 3, 1, 2, 50, 4)
    changed = np.concatenate([first[..., :23, :], second[..., 23:, :]], axis=-2)
    for pattern in PATTERNS:
        outputs = []
        for numbers in (first, changed):
            inputs = tf.unstack(tf.constant(numbers))
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                early = attend_pattern(pattern, *inputs, causal=True).output[:, :, :23]
            outputs.append(early.numpy())
        with subtests.test(repr(pattern)):
            assert all(np.abs(gradient[:, :, 23:]).max() == 0 for gradient in tape.gradient(early, inputs))
            np.testing.assert_array_equal(*outputs)


def test_a_sequence_without_summaries_gives_zeros_and_the_block_in_a_union():
    heads = normal(3, 1, 2, 5, 4)
    for causal in (False, True):
        near, far, merged = (
            ops.convert_to_numpy(attend_pattern(pattern, *heads, causal=causal).output)
            for pattern in (Blocks(8, 0), Summary(8, 2), Blocks(8, 0) | Summary(8, 2))
        )
        np.testing.assert_array_equal(far, 0)
        np.testing.assert_allclose(merged, near, rtol=1e-6, atol=1e-6)
