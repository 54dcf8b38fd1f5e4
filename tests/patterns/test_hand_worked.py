"""Patterns of positions on cases that a reader can compute: means of the visible values, and weights.

Queries are zero, so that the output is the mean of the visible values. The values are powers of two, whose means tell
which values are visible.
"""

import functools

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.patterns.small_cases import VALUES, attend_pattern, column, means
from tf_sparse_attention import patterns
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import (
    Blocks,
    First,
    ImageBlocks,
    Stride,
    Successors,
    Summary,
    Union,
    Window,
)
from tf_sparse_attention.patterns.first import BLOCK_SIZE

EVERYTHING = [1, 3 / 2, 7 / 3, 15 / 4, 31 / 5, 63 / 6]  # means of all values up to each
MERGED_STRIDES, MERGED_SUMMARIES = Window(2) | Stride(2), Blocks(3, 0, 0) | Summary(3, 1)
# Pattern, whether the call is causal, and the means.
SEEN = [
    (Window(1), True, VALUES),
    (Window(2), True, [1, 1.5, 3, 6, 12, 24]),
    (Window(2), False, [3 / 2, 7 / 3, 14 / 3, 28 / 3, 56 / 3, 24]),
    (Window(100), True, EVERYTHING),
    (patterns.Dilated(2, 2), True, [1, 2, 5 / 2, 10 / 2, 20 / 2, 40 / 2]),
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
    (Window(2) | First(1) | Window(2), True, [1, 1.5, 7 / 3, 13 / 3, 25 / 3, 49 / 3]),
    (Union((Window(2), First(1)), count_each=True), True, [1, 4 / 3, 7 / 3, 13 / 3, 25 / 3, 49 / 3]),
]


def test_a_query_gets_the_mean_of_the_values_it_sees(subtests):
    for pattern, causal, expected in SEEN:
        with subtests.test(repr(pattern), causal=causal):
            found = means(functools.partial(attend_pattern, pattern, causal=causal))
            np.testing.assert_allclose(found, expected, rtol=1e-6)


PATTERNS = [Window(8), Stride(8), Window(8) | Stride(8), Summary(6, 2), Blocks(6, 1), ImageBlocks(6, (2, 2))]


def test_dropout_leaves_out_or_scales_up_single_weights(subtests):
    # With the unit matrix as values, the output is the weights after dropout.
    query, key = np.random.default_rng(0).normal(size=(2, 4, 2, 60, 8)).astype("float32")
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


TOTAL = 6 * BLOCK_SIZE + 2
# Documents of one token, documents at the edges of blocks, and long ones; ids come back, in another document.
LENGTHS = [
    [1] * TOTAL,
    [BLOCK_SIZE - 1, 3 * BLOCK_SIZE, 1, BLOCK_SIZE, 2, BLOCK_SIZE],
    [5, BLOCK_SIZE - 6, 2, 3, TOTAL - BLOCK_SIZE - 4],
]


@pytest.mark.parametrize(("causal", "count"), first([(True, 3), (False, BLOCK_SIZE + 2), (False, 1)], 2))
def test_a_query_sees_the_first_tokens_of_its_own_document(causal, count):
    segments = np.array([np.repeat(np.arange(len(lengths)) % 3, lengths) for lengths in LENGTHS], "int32")
    # Zero scores: the output is the mean of the positions seen.
    zeros, values = (np.repeat(column(x), 3, axis=0) for x in (np.zeros(TOTAL), np.arange(TOTAL)))
    masks = TokenMasks(query_segments=segments, key_segments=segments)
    found = attend_pattern(First(count), zeros, zeros, values, causal=causal, masks=masks).output
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        begins = np.repeat(ends - lengths, lengths)
        last = np.minimum(np.repeat(ends, lengths), begins + count) - 1
        last = np.minimum(last, np.arange(TOTAL)) if causal else last
        np.testing.assert_allclose(ops.convert_to_numpy(found)[row, 0, :, 0], (begins + last) / 2, rtol=1e-5)


def test_documents_of_two_sequences_are_refused():
    layer, x = SparseAttention(1, 4, First(2)), np.ones((1, 8, 6), "float32")
    queries, keys = [[0, 0, 1, 1, 1, 1, 2, 2]], [[0, 0, 0, 0, 1, 1, 1, 2]]
    for call in (layer, layer.attention_pattern):
        with pytest.raises(ValueError, match=r"`value_segment_ids` must be None with First\(per_document=True\)"):
            call(x, x + 1, segment_ids=np.array(queries), value_segment_ids=np.array(keys))
        assert call(x, x + 1, segment_ids=np.array(queries)).shape[0] == 1  # the documents of both
    whole = SparseAttention(1, 4, First(2, per_document=False))
    assert whole(x, x + 1, segment_ids=np.array(queries), value_segment_ids=np.array(keys)).shape == x.shape
