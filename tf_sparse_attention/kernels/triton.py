"""Attention on GPUs of JAX over the pairs of slots that a rule allows, by kernels that Triton compiles.

Forward and backward pass go block by block, as FlashAttention-2 does (Dao 2023, sections 3.1 and 3.2): scores are never
written, and blocks without a visible pair are left out. Each number is added up by one program, always in the same
order: results repeat bit for bit.
"""

import functools
import math
from typing import NamedTuple

import keras
import numpy as np

from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.kernels.devices import over_devices
from tf_sparse_attention.kernels.rules import visible_blocks
from tf_sparse_attention.kernels.triton_programs import (
    BLOCKS,
    Plan,
    attend_block,
    differentiate_keys,
    differentiate_queries,
)
from tf_sparse_attention.ops.blocks import pad_axis, slice_axis
from tf_sparse_attention.types import Tensor

DTYPES = ("bfloat16", "float16")
SMALLEST_HEAD, LARGEST_HEAD = 16, 128
MOST_NUMBERS = 2**31 - 1  # of an array, whose places are counted in 32 bits


class Table(NamedTuple):
    """For each block of one side, which blocks of the other have visible pairs.

    Attributes:
        counts: int32 (blocks, 2), how many of them have hidden pairs too, and how many there are.
        numbers: int32 (blocks, most), their numbers, those with hidden pairs first.
    """

    counts: np.ndarray
    numbers: np.ndarray


def attend_slots(query: Tensor, key: Tensor, value: Tensor, pairs: SlotPairs, interpret: bool = False) -> Tensor:
    """Returns softmax attention of each query slot over the key slots that it may see.

    Args:
        query: scaled queries (B, N, T, H), of one of `DTYPES`.
        key: (B, N, S, H).
        value: (B, N, S, Hv).
        pairs: a `SlotPairs`.
        interpret: whether to interpret the kernels, on any device.

    Returns:
        Tensor (B, N, T, Hv); a query that sees no key gets zeros, or a mean of some values.
    """
    stages = 3 if max(query.shape[-1], value.shape[-1]) <= 64 else 2
    plan = Plan(pairs.rule, pairs.limits, (query.shape[2], key.shape[2]), interpret=interpret, stages=stages)
    arrays = [query, key, value]
    if pairs.query_groups is not None:
        arrays += [pairs.query_groups, pairs.key_groups]
    return over_devices(lambda *parts: _attend_part(plan, *parts), arrays)


def can_attend(query: Tensor, key: Tensor, value: Tensor, interpret: bool = False) -> bool:
    """Returns whether the kernels take arrays of these dtypes and sizes; interpreted ones take float32 as well."""
    arrays = query, key, value
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in arrays}
    return (
        len(dtypes) == 1
        and (interpret or dtypes <= set(DTYPES))
        and max(query.shape[-1], value.shape[-1]) <= LARGEST_HEAD
        and max(math.prod(x.shape) for x in arrays) <= MOST_NUMBERS
    )


def share_of_blocks(pairs: SlotPairs, lengths: tuple[int, int]) -> float:
    """Returns which share of all blocks of slots the kernels compute, of T and S slots."""
    return float(visible_blocks(pairs.rule, pairs.limits, lengths, BLOCKS).some.mean())


def _attend_part(plan: Plan, query: Tensor, key: Tensor, value: Tensor, *groups: Tensor) -> Tensor:
    """Returns `attend_slots` of all rows, or of those that one device has."""
    batch, heads, length, _ = query.shape
    sizes = [-(-size // block) * block for size, block in zip(plan.lengths, plan.blocks, strict=True)]
    rows = [
        _padded(x.reshape(batch * heads, *x.shape[2:]), size)
        for x, size in ((query, sizes[0]), (key, sizes[1]), (value, sizes[1]))
    ]
    groups = tuple(
        pad_axis(x.reshape(-1, x.shape[-1]), -1, 0, size - x.shape[-1]) for x, size in zip(groups, sizes, strict=False)
    )
    output = slice_axis(_attention_of(plan)(*rows, *groups), -2, 0, length)
    return output[..., : value.shape[-1]].reshape(batch, heads, length, -1)


def _padded(x, size):
    """Returns rows (R, T, H) with zeros up to `size` slots, and up to a power of 2 of numbers."""
    width = max(1 << (x.shape[-1] - 1).bit_length(), SMALLEST_HEAD)
    return pad_axis(pad_axis(x, -2, 0, size - x.shape[-2]), -1, 0, width - x.shape[-1])


@functools.lru_cache(maxsize=64)
def _attention_of(plan):
    """Returns attention of padded rows, a function with a gradient."""
    import jax

    @jax.custom_vjp
    def attend(query, key, value, *groups):
        return _forward(plan, query, key, value, *groups)[0]

    def attend_forward(query, key, value, *groups):
        output, normalizer = _forward(plan, query, key, value, *groups)
        return output, (query, key, value, groups, output, normalizer)

    def attend_backward(kept, upstream):
        query, key, value, groups, output, normalizer = kept
        # A softmax takes from each weight's gradient what all have in common: FlashAttention, 2022, equation 4.
        common = (output.astype("float32") * upstream.astype("float32")).sum(-1)
        arrays = (query, key, value, upstream.astype(query.dtype), normalizer, common, *groups)
        return _query_gradient(plan, *arrays), *_key_gradients(plan, *arrays), *(None for _ in groups)

    attend.defvjp(attend_forward, attend_backward)
    return attend


def _forward(plan, query, key, value, *groups):
    """Returns the output (R, T, Hv), and of each query the logarithm of the sum of its weights, to base 2, (R, T)."""
    rows, length, _ = query.shape
    shapes = [((rows, length, value.shape[-1]), query.dtype), ((rows, length), "float32")]
    return _call(attend_block, plan, 0, (query, key, value, *groups), "own all all own all", shapes)


def _query_gradient(plan, query, key, value, upstream, normalizer, common, *groups):
    """Returns the gradient of the queries, (R, T, H)."""
    arrays = (query, key, value, upstream, normalizer, common, *groups)
    kinds = "own all all own own own own all"
    return _call(differentiate_queries, plan, 0, arrays, kinds, [(query.shape, query.dtype)])[0]


def _key_gradients(plan, query, key, value, upstream, normalizer, common, *groups):
    """Returns the gradients of the keys (R, S, H) and of the values (R, S, Hv)."""
    arrays = (query, key, value, upstream, normalizer, common, *groups)
    kinds = "all own own all all all all own"
    return _call(differentiate_keys, plan, 1, arrays, kinds, [(x.shape, x.dtype) for x in (key, value)])


@functools.lru_cache(maxsize=64)  # forward pass and gradient of the queries have the same
def table_of(plan: Plan, by_keys: bool = False) -> Table:
    """Returns the `Table` of the blocks of queries, or of those of keys."""
    some, whole = visible_blocks(plan.rule, plan.limits, plan.lengths, plan.blocks)
    if by_keys:
        some, whole = some.T, whole.T
    numbers = np.zeros((len(some), max(int(some.sum(1).max(initial=0)), 1)), "int32")
    for row, seen, complete in zip(numbers, some, whole, strict=True):
        ordered = [*np.flatnonzero(seen & ~complete), *np.flatnonzero(complete)]
        row[: len(ordered)] = ordered
    return Table(np.stack([(some & ~whole).sum(1), some.sum(1)], axis=-1).astype("int32"), numbers)


def _call(program, plan, side, arrays, kinds, shapes):
    """Returns the results of a program that runs for each row and each block of one side: 0 queries, 1 keys.

    Args:
        program: a function of `triton_programs`.
        arrays: (R, T or S, ...), or groups with fewer rows, each of which is that of several.
        kinds: "own" or "all" for each, in a string.
        shapes: shape and dtype of each result, which all are "own".
    """
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    rows, block, table = arrays[0].shape[0], plan.blocks[side], table_of(plan, by_keys=side == 1)

    def spec(shape, kind):
        share, zeros = rows // shape[0], (0,) * len(shape[2:])
        sizes = (None, block if kind == "own" else shape[1], *shape[2:])
        return pallas.BlockSpec(sizes, lambda i, row: (jax.lax.div(row, share), i if kind == "own" else 0, *zeros))

    tables = [pallas.BlockSpec((None, x.shape[1]), lambda i, row: (i, 0)) for x in table]
    return pallas.pallas_call(
        functools.partial(program, plan),
        grid=(len(table.counts), rows),
        in_specs=[*tables, *(spec(x.shape, kind) for x, kind in zip(arrays, kinds.split(), strict=False))],
        out_specs=[spec(shape, "own") for shape, _ in shapes],
        out_shape=[jax.ShapeDtypeStruct(*each) for each in shapes],
        interpret=plan.interpret,
        compiler_params=triton.CompilerParams(num_warps=plan.warps, num_stages=plan.stages),
        name=program.__name__,
    )(*table, *arrays)
