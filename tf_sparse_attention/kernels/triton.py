"""Attention on GPUs of JAX over the pairs of slots that a rule allows, by kernels that Triton compiles."""

import functools
import math
from typing import Any

import keras

from tf_sparse_attention.kernels.availability import SlotPairs
from tf_sparse_attention.kernels.block_scores import HIDDEN, product, scores_of, whole_scores
from tf_sparse_attention.kernels.flash_attention import Programs, attend_by
from tf_sparse_attention.kernels.kernel_mask import Plan, kinds_of_numbers, table_of, visible_blocks
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


Ref = Any  # of Pallas, to an array in the memory of the device


def attend_block(plan: Plan, counts: Ref, others: Ref, query: Ref, key: Ref, value: Ref, *refs: Ref) -> None:
    """Writes the output of a block of queries, and the logarithm to base 2 of the sum of the weights of each.

    Args:
        plan: a `Plan`.
        counts, others: the row of a `Table` for this block.
        query: its own, (b, H).
        key, value: all, (S, H) and (S, Hv).
        refs: what is known of its own queries (b,) and of all keys (S,); then the results, (b, Hv) and (b,).
    """
    import jax.numpy as jnp

    numbers, (output, normalizer) = refs[:-2], refs[-2:]
    queries, start, size = query[...], _start(plan, 0), plan.blocks[0]
    own = [x[...] for x in numbers[: plan.query_numbers]]

    def step(at, carry, some_hidden):
        added, largest, total = carry
        slots = _slots(plan, 1, others[at])
        products, known = product(queries, key[slots, :], (1, 1)), (own, [x[slots] for x in numbers[len(own) :]])
        scores = _scores(plan, products, (start, slots.start), known, some_hidden)
        live = scores.live()
        highest = jnp.maximum(largest, live.max(-1))
        weights, shrunk = scores.counted(jnp.exp2(live - highest[:, None])), jnp.exp2(largest - highest)
        values = value[slots, :]
        added = added * shrunk[:, None] + product(weights.astype(values.dtype), values, (1, 0))
        return added, highest, total * shrunk + weights.sum(-1)

    carry = jnp.zeros((size, value.shape[-1])), jnp.full((size,), HIDDEN), jnp.zeros((size,))
    added, largest, total = _over_blocks(plan, counts, step, carry)
    some = largest > HIDDEN
    total = jnp.where(some, total, 1.0)
    output[...] = jnp.where(some[:, None], added / total[:, None], 0.0).astype(output.dtype)
    normalizer[...] = largest + jnp.log2(total)


def differentiate_queries(
    plan: Plan,
    counts: Ref,
    others: Ref,
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> None:
    """Writes the gradient of a block of queries.

    Args:
        plan: as in `attend_block`, like `counts`, `others`, `query`, `key`, `value` and `normalizer`.
        upstream: the gradient of the output of the own queries, (b, Hv).
        common: what the gradients of all weights of a query have in common, (b,).
        refs: numbers as in `attend_block`; then the results, (b, H), and with a span the gradient of the reach, (b,).
    """

    count = 1 + (plan.span is not None)
    numbers, outputs = refs[:-count], refs[-count:]
    queries, changes, start = query[...], upstream[...], _start(plan, 0)
    sums, both = normalizer[...][:, None], common[...][:, None]
    own = [x[...] for x in numbers[: plan.query_numbers]]

    def step(at, carry, some_hidden):
        slots = _slots(plan, 1, others[at])
        keys = key[slots, :]
        products, known = product(queries, keys, (1, 1)), (own, [x[slots] for x in numbers[len(own) :]])
        scores = _scores(plan, products, (start, slots.start), known, some_hidden)
        changed = scores.exponentials(sums) * (product(changes, value[slots, :], (1, 1)) - both)
        found = [product(scores.of_products(scores.counted(changed)).astype(keys.dtype), keys, (1, 0))]
        if plan.span is not None:
            found.append((changed * scores.slope).sum(-1))
        return tuple(a + b for a, b in zip(carry, found, strict=True))

    _write_over_blocks(plan, counts, step, outputs)


def differentiate_keys(
    plan: Plan,
    counts: Ref,
    others: Ref,
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> None:
    """Writes the gradients of a block of keys and of their values.

    Args:
        plan: as in `attend_block`, like `counts` and `others`.
        query, upstream, normalizer, common: as in `differentiate_queries`, but of all queries, (T, H) and so on.
        key, value: those of this block, (b, H) and (b, Hv).
        refs: what is known of all queries and of its own keys; then the results, (b, H) and (b, Hv).
    """

    numbers, outputs = refs[:-2], refs[-2:]
    keys, values, start = key[...], value[...], _start(plan, 1)
    own = [x[...] for x in numbers[plan.query_numbers :]]

    def step(at, carry, some_hidden):
        of_keys, of_values = carry
        slots = _slots(plan, 0, others[at])
        queries, changes = query[slots, :], upstream[slots, :]
        products, known = product(queries, keys, (1, 1)), ([x[slots] for x in numbers[: plan.query_numbers]], own)
        scores = _scores(plan, products, (slots.start, start), known, some_hidden)
        weights = scores.counted(scores.exponentials(normalizer[slots][:, None]))
        changed = weights * (product(changes, values, (1, 1)) - common[slots][:, None])
        of_values = of_values + product(weights.astype(changes.dtype), changes, (0, 0))
        return of_keys + product(scores.of_products(changed).astype(queries.dtype), queries, (0, 0)), of_values

    _write_over_blocks(plan, counts, step, outputs)


def _write_over_blocks(plan, counts, step, outputs):
    """Writes what is added up over all blocks of a table's row."""
    import jax.numpy as jnp

    carry = tuple(jnp.zeros(each.shape) for each in outputs)
    for output, found in zip(outputs, _over_blocks(plan, counts, step, carry), strict=True):
        output[...] = found.astype(output.dtype)


def _over_blocks(plan, counts, step, carry):
    """Returns what is carried over all blocks of a table's row; those without a hidden pair need no mask."""
    import jax

    carry = jax.lax.fori_loop(0, counts[0], lambda at, carry: step(at, carry, True), carry)
    if plan.asks_of_all:
        return carry
    return jax.lax.fori_loop(counts[0], counts[1], lambda at, carry: step(at, carry, False), carry)


def _slots(plan, side, number):
    from jax.experimental import pallas

    return pallas.dslice(number * plan.blocks[side], plan.blocks[side])


def _start(plan, side):
    from jax.experimental import pallas

    return pallas.program_id(0) * plan.blocks[side]


def _scores(plan, products, starts, numbers, some_hidden):
    """Returns the `Scores` of two blocks, (b, b'), whose numbers are rows (b,) and (b',)."""
    import jax

    if not some_hidden:
        return whole_scores(plan, products)
    queries, keys = starts
    queries = queries + jax.lax.broadcasted_iota("int32", (plan.blocks[0], 1), 0)
    keys = keys + jax.lax.broadcasted_iota("int32", (1, plan.blocks[1]), 1)
    of_queries, of_keys = numbers
    known = [x[:, None] for x in of_queries], [x[None, :] for x in of_keys]
    return scores_of(plan, products, (queries, keys), known)
