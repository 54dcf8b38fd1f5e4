"""Visible blocks of kernels equal those of all pairs, one by one."""

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.kernels import kernel_mask
from tf_sparse_attention.patterns import Blocks, Dilated, First, Stride, Summary, Window
from tf_sparse_attention.patterns.engine.pattern_mask import PatternMask


def brute_force(mask, lengths, sizes):
    """Return the blocks with a visible pair, and those in which all pairs are visible, bool (T / b, S / b')."""
    counts = [-(-length // size) for length, size in zip(lengths, sizes, strict=True)]
    queries, keys = (np.arange(count * size, dtype="int32") for count, size in zip(counts, sizes, strict=True))
    seen = (
        kernel_mask.evaluate(mask, queries[:, None], keys[None]) & (queries < lengths[0])[:, None] & (keys < lengths[1])
    )
    seen = seen.reshape(counts[0], sizes[0], counts[1], sizes[1])
    return seen.any((1, 3)), seen.all((1, 3))


def as_matrices(regions, lengths, sizes):
    """Return `visible_blocks` as `brute_force` does."""
    rows, columns, is_full = kernel_mask.visible_blocks(regions, lengths, sizes)
    some, full = np.zeros((2, *(-(-length // size) for length, size in zip(lengths, sizes, strict=True))), bool)
    some[rows, columns], full[rows, columns] = True, is_full
    return some, full


def region_of(pattern, lengths, hide_self=False, causal=True):
    """Return the region of a pattern, with the narrowest limits of distances of local patterns."""
    mask = PatternMask(((pattern, 0),), causal=causal, hide_self=hide_self)
    reach = pattern.reach if isinstance(pattern, (Window, Dilated, Blocks)) else max(lengths)
    limits = max(1 - lengths[0], -reach), 0 if causal else min(lengths[1] - 1, reach)
    return mask.region(limits, pattern.count if isinstance(pattern, First) else None)


PATTERNS = [Window(7), Window(1), Window(2), Stride(5), Dilated(3, 4), Blocks(6, 1), Summary(8, 2), First(3), First(20)]


@draws(40, 200)
@given(
    st.sampled_from(PATTERNS),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16])),
)
def test_blocks_are_those_of_all_pairs(pattern, causal, hides_self, lengths, sizes):
    region = region_of(pattern, lengths, hides_self, causal)
    found = as_matrices((region,), lengths, sizes)
    for blocks, expected in zip(found, brute_force(region.mask, lengths, sizes), strict=True):
        np.testing.assert_array_equal(blocks, expected)


def test_blocks_of_a_union_are_those_of_its_parts():
    lengths, sizes, others = (75, 75), (8, 16), (First(3), Stride(7))
    regions = tuple(region_of(each, lengths) for each in (Window(9), *others))
    union = PatternMask(((Window(9), 0), *((each, 0) for each in others)), causal=True)
    some, full = as_matrices(regions, lengths, sizes)
    np.testing.assert_array_equal(some, brute_force(union, lengths, sizes)[0])
    np.testing.assert_array_equal(full, np.any([brute_force(each.mask, lengths, sizes)[1] for each in regions], axis=0))


def test_tables_of_a_union_take_no_time_or_memory_that_grows_with_the_square_of_the_length():
    length = 2**18
    regions = tuple(region_of(each, (length, length)) for each in (Window(256), First(4)))
    mask = kernel_mask.KernelMask(PatternMask(((Window(256), 0), (First(4), 1)), causal=True), regions)
    begun = time.perf_counter()
    spec = kernel_mask.KernelSpec(mask, ((), ()), (length, length), (64, 64))
    kernel_mask.check_traceable(spec)
    tables = [kernel_mask.block_table(spec, by_keys) for by_keys in (False, True)]
    assert time.perf_counter() - begun < 5  # seen: about 1; all pairs one by one take minutes
    begin, partial, end = tables[0].bounds[-1]
    assert tables[0].indices[begin:end].tolist() == [0, 4091, 4095, 4092, 4093, 4094]  # partly masked ones first
    assert partial - begin == 3
    begin, _, end = tables[1].bounds[0]
    assert end - begin == 4096
    assert sum(table.indices.nbytes for table in tables) < 200_000
