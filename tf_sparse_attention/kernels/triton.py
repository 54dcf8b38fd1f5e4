"""Attention on GPUs of JAX over the pairs of slots that a rule allows, by kernels that Triton compiles."""

import functools
import math

import keras

from tf_sparse_attention.kernels.attention import Programs, attend_by
from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.kernels.plan import Plan, kinds_of_numbers, table_of
from tf_sparse_attention.kernels.rules import visible_blocks
from tf_sparse_attention.kernels.triton_programs import attend_block, differentiate_keys, differentiate_queries
from tf_sparse_attention.ops.blocks import pad_axis
from tf_sparse_attention.types import Tensor

DTYPES = ("bfloat16", "float16")
SMALLEST_HEAD, LARGEST_HEAD = 16, 128
BLOCKS, WARPS = (64, 64), 4  # the fastest of those tried on an H200
MOST_NUMBERS = 2**31 - 1  # of an array, whose places are counted in 32 bits


def attend_slots(
    query: Tensor, key: Tensor, value: Tensor, pairs: SlotPairs, interpret: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns attention and its log-sum-exp, see `attend_by`; `interpret`: whether on any device, slowly."""
    lengths, width = (query.shape[2], key.shape[2]), value.shape[-1]
    plan = Plan.of(pairs, lengths, BLOCKS, interpret)
    output, log_sum_exp = attend_by(PROGRAMS, plan, _widened(query), _widened(key), _widened(value), pairs)
    return output[..., :width], log_sum_exp


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


def _widened(x):
    """Returns rows (B, N, T, X) with zeros up to a power of 2 of numbers."""
    return pad_axis(x, -1, 0, max(1 << (x.shape[-1] - 1).bit_length(), SMALLEST_HEAD) - x.shape[-1])


def _forward(plan, query, key, value, *numbers):
    rows, length, _ = query.shape
    shapes = [((rows, length, value.shape[-1]), query.dtype), ((rows, length), "float32")]
    return _call(attend_block, plan, 0, (query, key, value), "own all all", numbers, shapes)


def _query_gradients(plan, query, key, value, upstream, normalizer, common, *numbers):
    arrays, kinds = (query, key, value, upstream, normalizer, common), "own all all own own own"
    shapes = [(query.shape, query.dtype)] + [(common.shape, "float32")] * (plan.span is not None)
    return _call(differentiate_queries, plan, 0, arrays, kinds, numbers, shapes)


def _key_gradients(plan, query, key, value, upstream, normalizer, common, *numbers):
    arrays, kinds = (query, key, value, upstream, normalizer, common), "all own own all all all"
    shapes = [((len(query), *x.shape[1:]), x.dtype) for x in (key, value)]
    return _call(differentiate_keys, plan, 1, arrays, kinds, numbers, shapes)


def _call(program, plan, side, arrays, kinds, numbers, shapes):
    """Returns the results of a program that runs for each row and each block of one side: 0 queries, 1 keys.

    Args:
        program: a function of `triton_programs`.
        arrays: (R', T or S, ...), the first of R rows.
        kinds: "own" or "all" for each, in a string.
        numbers: those of queries and then of keys, int32 (R', T or S), of which each row may be that of several.
        shapes: shape and dtype of each result, which all are "own".
    """
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    rows, block, table = arrays[0].shape[0], plan.blocks[side], table_of(plan, by_keys=side == 1)
    kinds = kinds.split() + kinds_of_numbers(plan, len(numbers), side, "all")
    arrays = (*arrays, *numbers)
    stages = 3 if max(x.shape[-1] for x in arrays[:3]) <= 64 else 2

    def spec(shape, kind):
        share, zeros = rows // shape[0], (0,) * len(shape[2:])
        sizes = (None, block if kind == "own" else shape[1], *shape[2:])
        return pallas.BlockSpec(sizes, lambda i, row: (jax.lax.div(row, share), i if kind == "own" else 0, *zeros))

    tables = [pallas.BlockSpec((None, x.shape[1]), lambda i, row: (i, 0)) for x in table]
    return pallas.pallas_call(
        functools.partial(program, plan),
        grid=(len(table.counts), rows),
        in_specs=[*tables, *(spec(x.shape, kind) for x, kind in zip(arrays, kinds, strict=True))],
        out_specs=[spec(shape, "own") for shape, _ in shapes],
        out_shape=[jax.ShapeDtypeStruct(*each) for each in shapes],
        interpret=plan.interpret,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=stages),
        name=program.__name__,
    )(*table, *arrays)


PROGRAMS = Programs(_forward, _query_gradients, _key_gradients)
