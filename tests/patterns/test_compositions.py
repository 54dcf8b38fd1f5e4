"""Unions and per-head patterns on small cases.

The layers of `tests/cases.py` and `tests/drawn.py` test that they equal dense attention, decode and are causal.
"""

import numpy as np
import pytest
from keras import ops

from tests.patterns.small_cases import attend_pattern, column
from tf_sparse_attention.patterns import First, Heads, InTurn, Summary, Union, Window


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
