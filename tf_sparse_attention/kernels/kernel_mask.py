"""Masks of attention kernels: mask functions, and the blocks of queries and keys with visible pairs.

A mask function is like `mask_mod` in FlexAttention. It returns whether a query attends to a key. Its arguments are the
query index, the key index, and the data of both for the current block. Mask functions must be hashable, since they are
keys of the cache of compiled kernels.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tf_sparse_attention.kernels.availability import UnsupportedByKernel
from tf_sparse_attention.types import Tensor

# Function of query indices, key indices, query data and key data, by name: integer arrays that broadcast to the pairs.
MaskFunction: TypeAlias = Callable[[Any, Any, Mapping[str, Any], Mapping[str, Any]], Any]
# Data of queries and of keys by name: int32 (B, 1 or N, T) and (B, 1 or N, S).
MaskData: TypeAlias = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
SPAN_REACH = "span_reach"  # query data, float32 and with a gradient: the reach of each query's span
_PAIRS_AT_ONCE = 2**22  # pairs per evaluation of a mask, which bounds its memory


class Region(NamedTuple):
    """Pairs of indices that can attend, from which the blocks of a kernel follow.

    Attributes:
        mask: mask function, evaluated without data.
        limits: least and greatest key index minus query index of a pair.
        num_keys: in this region, only the first `num_keys` keys can be attended to. None: all keys.
        period: `mask` does not change if query and key move together by this number of indices. None: no period.
    """

    mask: MaskFunction
    limits: tuple[int, int]
    num_keys: int | None = None
    period: int | None = None


class SpanRamp(NamedTuple):
    """Adaptive span: a pair's weight is multiplied by clip((reach - distance) / ramp + 1, 0, 1).

    Attributes:
        ramp: length of the ramp, in positions.
        lead: key index of the first query's position.
    """

    ramp: int
    lead: int


class KernelMask(NamedTuple):
    """Pairs that attend in a kernel, and modifications of their scores. It is hashable.

    Attributes:
        function: mask function.
        regions: a pair that attends is in one of these.
        fallback: mask function of pairs that attend only if their query has no other pair. None: no such pairs.
        reach: typical distance of a pair, which decides the block size on TPUs. None: that of `regions`.
        span: a `SpanRamp`, or None.
        soft_cap: c of c tanh(q . k / c), which replaces q . k. None: no cap.
    """

    function: MaskFunction
    regions: tuple[Region, ...]
    fallback: MaskFunction | None = None
    reach: int | None = None
    span: SpanRamp | None = None
    soft_cap: float | None = None


class KernelSpec(NamedTuple):
    """Static arguments of a kernel: the key of the cache of compiled kernels.

    Attributes:
        mask: a `KernelMask`.
        names: names of the query data and of the key data.
        lengths: T and S.
        blocks: queries and keys per block.
        interpret: see `Kernel`.
    """

    mask: KernelMask
    names: tuple[tuple[str, ...], tuple[str, ...]]
    lengths: tuple[int, int]
    blocks: tuple[int, int]
    interpret: bool = False

    @property
    def padded_lengths(self) -> tuple[int, int]:
        """Numbers of queries and keys in whole blocks."""
        queries, keys = _counts(self.lengths, self.blocks)
        return queries * self.blocks[0], keys * self.blocks[1]

    @property
    def masks_every_block(self) -> bool:
        """Whether pairs depend on more than indices, so that every block needs the mask."""
        return bool(self.names[0]) or self.mask.fallback is not None


class BlockTable(NamedTuple):
    """Visible blocks of one side for each block of the other side, as rows of a sparse matrix.

    Attributes:
        bounds: int32 (blocks, 3): the start of a row in `indices`, the end of its partly masked blocks, and its end.
        indices: int32 (visible blocks,): block numbers, row by row, partly masked ones first; never empty.
    """

    bounds: np.ndarray
    indices: np.ndarray


class VisibleBlocks(NamedTuple):
    """Blocks with a visible pair, in ascending order.

    Attributes:
        rows, columns: int64 (visible blocks,): numbers of the blocks of queries and of keys.
        is_full: bool (visible blocks,): whether all pairs are visible.
    """

    rows: np.ndarray
    columns: np.ndarray
    is_full: np.ndarray


@functools.lru_cache(maxsize=64)  # forward pass and gradient of the queries share a table
def block_table(spec: KernelSpec, by_keys: bool = False) -> BlockTable:
    """Return the `BlockTable` of the blocks of queries, or of those of keys."""
    rows, columns, is_full = visible_blocks(spec.mask.regions, spec.lengths, spec.blocks)
    if spec.masks_every_block:
        is_full = np.zeros_like(is_full)
    own, other = (columns, rows) if by_keys else (rows, columns)
    count = _counts(spec.lengths, spec.blocks)[by_keys]
    totals, partial = (np.bincount(blocks, minlength=count) for blocks in (own, own[~is_full]))
    ends = np.cumsum(totals)
    bounds = np.stack([ends - totals, ends - totals + partial, ends], axis=-1)
    indices = other[np.lexsort((other, is_full, own))]
    return BlockTable(bounds.astype("int32"), (indices if len(indices) else np.zeros(1)).astype("int32"))


def visible_share(spec: KernelSpec) -> float:
    """Return the share of all blocks that have a visible pair."""
    return len(visible_blocks(spec.mask.regions, spec.lengths, spec.blocks).rows) / math.prod(
        _counts(spec.lengths, spec.blocks)
    )


@functools.lru_cache(maxsize=64)
def visible_blocks(regions: tuple[Region, ...], lengths: tuple[int, int], sizes: tuple[int, int]) -> VisibleBlocks:
    """Return the blocks in which some region has a pair. Time and memory are linear in the number of candidate blocks.

    A block is full if one region alone shows all of its pairs. Padding beyond the lengths is never visible.

    Args:
        regions: tuple of `Region`.
        lengths: T and S.
        sizes: queries and keys per block.
    """
    found = [_visible_in(region, lengths, sizes) for region in regions]
    rows, columns, is_full = (np.concatenate(parts) for parts in zip(*found, strict=True))
    num_columns = _counts(lengths, sizes)[1]
    codes, inverse = np.unique(rows * num_columns + columns, return_inverse=True)
    full = np.zeros(len(codes), bool)
    full[inverse[is_full]] = True
    return VisibleBlocks(codes // num_columns, codes % num_columns, full)


def evaluate(mask: MaskFunction, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Evaluate a mask function at constant indices, as a NumPy array. This also works while JAX traces a program."""
    import jax

    with jax.ensure_compile_time_eval():
        visible = np.asarray(mask(query, key, {}, {}))
    return np.broadcast_to(visible, np.broadcast_shapes(query.shape, key.shape))


def _visible_in(region, lengths, sizes):
    """Return the visible blocks of one region, unordered."""
    counts = _counts(lengths, sizes)
    shifts = counts  # of rows and columns, after which blocks repeat
    if region.period is not None:
        repeat = math.lcm(region.period, *sizes)
        shifts = repeat // sizes[0], repeat // sizes[1]
    repeats = max(-(-count // shift) for count, shift in zip(counts, shifts, strict=True))
    rows = np.arange(min(shifts[0], counts[0]))
    first = (rows * sizes[0] + region.limits[0]) // sizes[1]
    last = ((rows + 1) * sizes[0] - 1 + region.limits[1]) // sizes[1] + 1
    num_keys = lengths[1] if region.num_keys is None else min(region.num_keys, lengths[1])
    at, columns = _ranges(np.maximum(first, (1 - repeats) * shifts[1]), np.minimum(last, -(-num_keys // sizes[1])))
    rows = rows[at]
    # Shifted by whole repeats, so that no index is negative.
    start = (0, 0) if region.period is None else (repeats * shifts[0], repeats * shifts[1])
    visible, is_full = _evaluate_blocks(region.mask, rows + start[0], columns + start[1], sizes)
    rows, columns, is_full = rows[visible], columns[visible], is_full[visible]
    ends = [-(-(count - x) // shift) for count, x, shift in zip(counts, (rows, columns), shifts, strict=True)]
    at, repeat = _ranges(np.maximum(-(columns // shifts[1]), 0), np.minimum(*ends))
    rows, columns, is_full = rows[at] + repeat * shifts[0], columns[at] + repeat * shifts[1], is_full[at]
    padded = [length % size != 0 for length, size in zip(lengths, sizes, strict=True)]
    at_end = np.flatnonzero((padded[0] & (rows == counts[0] - 1)) | (padded[1] & (columns == counts[1] - 1)))
    visible = np.ones(len(rows), bool)
    visible[at_end], is_full[at_end] = _evaluate_blocks(region.mask, rows[at_end], columns[at_end], sizes, lengths)
    return rows[visible], columns[visible], is_full[visible]


def _evaluate_blocks(mask, rows, columns, sizes, lengths=None):
    """Return whether each block has a visible pair, and whether all of its pairs are visible."""
    visible, is_full = np.zeros((2, len(rows)), bool)
    step = max(_PAIRS_AT_ONCE // math.prod(sizes), 1)
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        query = (rows[part, None, None] * sizes[0] + np.arange(sizes[0])[:, None]).astype("int32")
        key = (columns[part, None, None] * sizes[1] + np.arange(sizes[1])).astype("int32")
        pairs = evaluate(mask, query, key)
        if lengths is not None:
            pairs = pairs & (query < lengths[0]) & (key < lengths[1])
        visible[part], is_full[part] = pairs.any((1, 2)), pairs.all((1, 2))
    return visible, is_full


def _ranges(first, last):
    """Concatenate the ranges [first, last): return the range index of each integer, and the integers."""
    sizes = np.maximum(last - first, 0)
    at = np.repeat(np.arange(len(sizes)), sizes)
    return at, np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + first[at]


def _counts(lengths, sizes):
    """Return the numbers of blocks of queries and of keys."""
    queries, keys = (-(-length // size) for length, size in zip(lengths, sizes, strict=True))
    return queries, keys


def check_traceable(spec: KernelSpec) -> None:
    """Raise `UnsupportedByKernel` unless JAX can trace the mask function inside a kernel."""
    try:
        constants = _closure_constants(spec.mask.function, spec.names)
    except TypeError:  # not hashable, or NumPy functions of traced indices
        constants = [None]
    if constants:
        raise UnsupportedByKernel(
            "the pattern's `visible` must be hashable and traceable by JAX, without NumPy functions and arrays"
        )


@functools.lru_cache(maxsize=64)
def _closure_constants(function, names):
    """Return the constant arrays in the program of a mask function."""
    import jax

    block = jax.ShapeDtypeStruct((128, 128), "int32")
    return jax.make_jaxpr(function)(block, block, *(dict.fromkeys(side, block) for side in names)).consts
