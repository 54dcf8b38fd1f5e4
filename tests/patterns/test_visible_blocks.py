"""Which blocks of pairs kernels compute, against all pairs one by one."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.kernels.kernel_mask import evaluate, visible_blocks
from tf_sparse_attention.patterns import Blocks, Dilated, First, Stride, Summary, Window
from tf_sparse_attention.patterns.engine.pattern_mask import AnyRule, SlotRule


def brute_force(rule, lengths, sizes):
    """Returns the blocks with a visible pair, and those in which all pairs are visible, bool (T / b, S / b')."""
    counts = [-(-length // size) for length, size in zip(lengths, sizes, strict=True)]
    queries, keys = (np.arange(count * size, dtype="int32") for count, size in zip(counts, sizes, strict=True))
    seen = evaluate(rule, queries[:, None], keys[None]) & (queries < lengths[0])[:, None] & (keys < lengths[1])
    seen = seen.reshape(counts[0], sizes[0], counts[1], sizes[1])
    return seen.any((1, 3)), seen.all((1, 3))


PATTERNS = [Window(7), Window(1), Stride(5), Dilated(3, 4), Blocks(6, 1), Summary(8, 2), First(3), First(20)]


@draws(40, 200)
@given(
    st.sampled_from(PATTERNS),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16])),
)
def test_blocks_are_those_of_all_pairs(pattern, causal, hides_self, lengths, sizes):
    num_keys = pattern.count if isinstance(pattern, First) else None
    rule = SlotRule(pattern, causal, 0, hides_self, num_keys=num_keys)
    found = visible_blocks(rule, (1 - lengths[0], lengths[1] - 1), lengths, sizes)
    for blocks, expected in zip(found, brute_force(rule, lengths, sizes), strict=True):
        np.testing.assert_array_equal(blocks, expected)


@pytest.mark.parametrize("others", [(Stride(5),), (First(3),), (First(3), Stride(7))])
def test_blocks_of_a_union_are_those_of_its_parts(others):
    parts = [SlotRule(x, True, 0, num_keys=getattr(x, "count", None)) for x in (Window(9), *others)]
    lengths, sizes = (75, 75), (8, 16)
    some, whole = visible_blocks(AnyRule(tuple(parts)), (-74, 74), lengths, sizes)
    np.testing.assert_array_equal(some, brute_force(AnyRule(tuple(parts)), lengths, sizes)[0])
    np.testing.assert_array_equal(whole, np.any([brute_force(part, lengths, sizes)[1] for part in parts], axis=0))


def test_a_long_sequence_takes_no_time_that_grows_with_its_square():
    parts = (SlotRule(Window(256), True, 0), SlotRule(First(4), True, 0, num_keys=4), SlotRule(Stride(128), True, 0))
    length = 2**17
    begun = time.perf_counter()
    some, _ = visible_blocks(AnyRule(parts), (1 - length, length - 1), (length, length), (64, 64))
    assert time.perf_counter() - begun < 10  # seen: about 1; all pairs one by one take minutes
    assert some[-1, 0]
    assert some[-1, -5:].all()
