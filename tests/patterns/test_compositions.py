"""Unions, per-head patterns, first tokens and persistent vectors on small cases.

The layers of `tests/cases.py` and `tests/drawn.py` test that they equal dense attention, decode and are causal.
"""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.patterns.small_cases import attend_pattern, column
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import First, Heads, InTurn, Summary, Union, Window
from tf_sparse_attention.patterns.first import BLOCK_SIZE


def test_a_union_counts_each_pair_once():
    # Zero scores: the output is the mean of the values seen.
    zeros, values = column([0] * 5), column([1, 2, 4, 8, 16])
    once = attend_pattern(Window(2) | First(1) | Window(2), zeros, zeros, values, causal=True).output
    np.testing.assert_allclose(ops.convert_to_numpy(once)[0, 0, :, 0], [1, 1.5, 7 / 3, 13 / 3, 25 / 3], rtol=1e-6)
    each = Union((Window(2), First(1)), count_each=True)
    often = attend_pattern(each, zeros, zeros, values, causal=True).output
    np.testing.assert_allclose(ops.convert_to_numpy(often)[0, 0, :, 0], [1, 4 / 3, 7 / 3, 13 / 3, 25 / 3], rtol=1e-6)


def test_the_log_sum_exp_of_a_union_is_that_of_all_its_parts():
    zeros = column([0] * 5)
    for pattern in (Window(2) | First(1), Heads([(1, First(1) | Window(2))])):
        found = attend_pattern(pattern, zeros, zeros, zeros, causal=True, return_log_sum_exp=True).log_sum_exp
        np.testing.assert_allclose(np.exp(ops.convert_to_numpy(found))[0, 0], [1, 2, 3, 3, 3], rtol=1e-6)


@pytest.mark.parametrize("before", [[], [Window(4), Window(5)]])
def test_heads_that_take_turns_stay_in_their_order(before):
    turns = [Window(1), Window(2), Window(3)]
    pattern = InTurn(turns) if not before else Heads([*((1, part) for part in before), (6, InTurn(turns))])
    expected = [*before, *turns, *turns]
    zeros = np.zeros((1, len(expected), 7, 1), "float32")
    values = np.random.default_rng(0).normal(size=zeros.shape).astype("float32")
    found = attend_pattern(pattern, zeros, zeros, values, causal=True, return_weights=True)
    for head, part in enumerate(expected):
        own = slice(head, head + 1)
        alone = attend_pattern(part, zeros[:, own], zeros[:, own], values[:, own], causal=True, return_weights=True)
        for actual, wanted in zip(found[:2], alone[:2], strict=True):
            np.testing.assert_allclose(actual[:, own], wanted, rtol=0, atol=1e-6)


def test_a_token_is_hidden_from_itself_in_every_part():
    zeros, values = column([0] * 5), column([1, 2, 4, 8, 16])
    for hide_self, alone in (("unless_alone", 1), ("always", 0)):
        parts = First(1) | Window(2)
        found = attend_pattern(parts, zeros, zeros, values, causal=True, hide_self=hide_self).output
        np.testing.assert_allclose(ops.convert_to_numpy(found)[0, 0, :, 0], [alone, 1, 1.5, 2.5, 4.5], rtol=1e-6)


def test_a_part_without_pairs_of_its_own_adds_nothing():
    value = column([3])
    for causal in (True, False):
        output = attend_pattern(Summary(1, 1) | First(1), value, value, value, causal=causal).output
        np.testing.assert_allclose(ops.convert_to_numpy(output)[0, 0, :, 0], [3], rtol=1e-6)


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


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float64"))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 0.04)])
def test_vectors_are_keys_that_no_mask_hides(dtype, tolerance):
    rng = np.random.default_rng(0)
    heads = [ops.cast(rng.standard_normal((2, 2, 5, size)), dtype) for size in (6, 6, 3)]
    vectors = [ops.cast(rng.standard_normal((2, 7, size)), dtype) for size in (6, 3)]
    mask = rng.random((1, 1, 5, 5)) < 0.5
    mask[:, :, 1] = False
    found = attend_pattern(Window(9), *heads, masks=TokenMasks(attention_mask=mask), persistent=vectors).output
    query, *keys_and_values = heads
    whole = [
        ops.concatenate([x, ops.tile(more[None], (2, 1, 1, 1))], 2)
        for x, more in zip(keys_and_values, vectors, strict=True)
    ]
    everything = np.concatenate([mask, np.ones((1, 1, 5, 7), bool)], axis=-1)
    weights = np.where(everything, np.exp(numbers(query) @ numbers(whole[0]).swapaxes(-1, -2)), 0)
    expected = weights / weights.sum(-1, keepdims=True) @ numbers(whole[1])
    np.testing.assert_allclose(numbers(found), expected, rtol=0, atol=tolerance)


def test_dropout_applies_to_vectors():
    # One key and one vector of weight 1/2 each: what is kept counts 1, and both come and go.
    zeros, ones = np.zeros((1, 1, 200, 1)), np.ones((1, 1, 200, 1))
    persistent = np.zeros((1, 1, 1)), np.full((1, 1, 1), 10.0)
    attended = attend_pattern(Window(1), zeros, zeros, ones, persistent=persistent, dropout=Dropout(0.5, 1))
    assert {round(x) for x in numbers(attended.output).ravel().tolist()} == {0, 1, 10, 11}
