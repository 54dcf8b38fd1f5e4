"""Attention on TPUs of JAX over the pairs of slots that a rule allows, by kernels that Mosaic compiles.

One step of the grid computes two blocks of slots, which the device loads while it computes those before.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from tf_sparse_attention.kernels.availability import SlotPairs
from tf_sparse_attention.kernels.block_scores import HIDDEN, product, scores_of, whole_scores
from tf_sparse_attention.kernels.flash_attention import Programs, attend_by
from tf_sparse_attention.kernels.kernel_mask import Plan, kinds_of_numbers, table_of, visible_blocks
from tf_sparse_attention.types import Tensor

DTYPES = ("float32", "bfloat16")  # TPUs read no float16
LARGEST_BLOCK = 512
MOST_BLOCKS = 256  # on a side; each pair of them is looked at when the program is made


def attend_slots(
    query: Tensor, key: Tensor, value: Tensor, pairs: SlotPairs, interpret: bool = False
) -> tuple[Tensor, Tensor]:
    """Returns attention and its log-sum-exp, see `attend_by`; `interpret`: whether on any device, slowly."""
    lengths = query.shape[2], key.shape[2]
    blocks = _block_sizes(lengths, pairs)
    plan = Plan.of(pairs, lengths, blocks, interpret)
    return attend_by(PROGRAMS, plan, query, key, value, pairs)


def can_attend(query: Tensor, key: Tensor, value: Tensor, interpret: bool = False) -> bool:
    """Returns whether the kernels take arrays of these dtypes."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    return len(dtypes) == 1 and dtypes <= set(DTYPES)


def share_of_blocks(pairs: SlotPairs, lengths: tuple[int, int]) -> float:
    """Returns which share of all blocks of slots the kernels compute, of T and S slots."""
    blocks = _block_sizes(lengths, pairs)
    return float(visible_blocks(pairs.rule, pairs.limits, lengths, blocks).some.mean())


def _block_sizes(lengths, pairs):
    """Returns the slots of a block of queries and of keys for so many of either.

    About as many as the rule reaches: of larger blocks most pairs are hidden, and each block has a price of its own.
    """
    reach, block, longest = pairs.reach or max(abs(limit) for limit in pairs.limits) + 1, LANES, max(lengths)
    while 2 * block <= min(LARGEST_BLOCK, reach, longest) or longest > MOST_BLOCKS * block:
        block *= 2
    queries, keys = (min(block, -(-length // LANES) * LANES) for length in lengths)
    return queries, keys


def _forward(plan, query, key, value, *numbers):
    (rows, length, _), width, block = query.shape, value.shape[-1], plan.blocks[0]
    shapes = [((rows, length, width), query.dtype), ((rows, 1, length), "float32")]
    carried = [(width, block), (1, block), (1, block)]
    output, normalizer = _call(attend_block, plan, 0, (query, key, value), "own other other", numbers, shapes, carried)
    return output, normalizer[:, 0]


def _query_gradients(plan, query, key, value, upstream, normalizer, common, *numbers):
    arrays, kinds = (query, key, value, upstream, normalizer[:, None], common[:, None]), "own other other own own own"
    shapes, carried = [(query.shape, query.dtype)], [(plan.blocks[0], query.shape[-1])]
    if plan.span is not None:
        shapes, carried = [*shapes, (arrays[-1].shape, "float32")], [*carried, (1, plan.blocks[0])]
    found = _call(differentiate_queries, plan, 0, arrays, kinds, numbers, shapes, carried)
    return found[0], *(x[:, 0] for x in found[1:])


def _key_gradients(plan, query, key, value, upstream, normalizer, common, *numbers):
    arrays = (query, key, value, upstream, normalizer[:, None], common[:, None])
    shapes = [((len(query), *x.shape[1:]), x.dtype) for x in (key, value)]
    carried = [(plan.blocks[1], x.shape[-1]) for x in (key, value)]
    return _call(differentiate_keys, plan, 1, arrays, "other own own other other other", numbers, shapes, carried)


def _call(program, plan, side, arrays, kinds, numbers, shapes, carried):
    """Returns the results of a program that runs for each row and each block of one side: 0 queries, 1 keys.

    Args:
        program: a function of `mosaic_programs`.
        arrays: (R', T or S, X), the first of R rows, and numbers of slots (R, 1, T or S), of which a block is a row.
        kinds: "own" or "other" for each, in a string.
        numbers: those of queries and then of keys, int32 (R', T or S), of which each row may be that of several.
        shapes: shape and dtype of each result, which all are "own".
        carried: shape of each array that is carried from step to step.
    """
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    rows, table = arrays[0].shape[0], table_of(plan, by_keys=side == 1)
    kinds = kinds.split() + kinds_of_numbers(plan, len(numbers), side, "other")
    arrays = (*arrays, *(x[:, None] for x in numbers))

    def spec(shape, kind):
        share, block = rows // shape[0], plan.blocks[side if kind == "own" else 1 - side]

        def index(row, own, step, counts, others):
            number = own if kind == "own" else others[own, step]
            return (row if share == 1 else jax.lax.div(row, share), *((0, number) if shape[1] == 1 else (number, 0)))

        return pallas.BlockSpec((None, *((1, block) if shape[1] == 1 else (block, shape[2]))), index)

    grid = tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(table),
        grid=(rows, *table.numbers.shape),
        in_specs=[spec(x.shape, kind) for x, kind in zip(arrays, kinds, strict=True)],
        out_specs=[spec(shape, "own") for shape, _ in shapes],
        scratch_shapes=[tpu.VMEM(shape, np.dtype("float32")) for shape in carried],
    )
    return pallas.pallas_call(
        functools.partial(_run, program, plan, side),
        grid_spec=grid,
        out_shape=[jax.ShapeDtypeStruct(*each) for each in shapes],
        interpret=plan.interpret,
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="{}_{}_by_{}".format(program.__name__, *plan.blocks),
    )(*table, *arrays)


def _run(program, plan, side, counts, others, *refs):
    """Runs one step of a program."""
    from jax.experimental import pallas

    own, step = pallas.program_id(1), pallas.program_id(2)
    starts = [own * plan.blocks[side], others[own, step] * plan.blocks[1 - side]]
    steps = program(plan, starts[:: 1 - 2 * side], *refs)
    pallas.when(step == 0)(steps.begin)
    pallas.when(step < counts[own, 0])(lambda: steps.step(True))
    if not plan.asks_of_all:
        pallas.when((step >= counts[own, 0]) & (step < counts[own, 1]))(lambda: steps.step(False))
    pallas.when(step == pallas.num_programs(2) - 1)(steps.end)


PROGRAMS = Programs(_forward, _query_gradients, _key_gradients)


Ref = Any  # of Pallas, to a block of an array in the memory beside the processor
LANES = 128  # of a TPU


class Steps(NamedTuple):
    """What a program does.

    Attributes:
        begin, end: functions without arguments.
        step: function of whether some pairs of the two blocks are hidden.
    """

    begin: Callable
    step: Callable
    end: Callable


def attend_block(plan: Plan, starts: tuple[Any, Any], query: Ref, key: Ref, value: Ref, *refs: Ref) -> Steps:
    """Gives the output of a block of queries, and the logarithm to base 2 of the sum of the weights of each.

    Args:
        plan: a `Plan`.
        starts: the first slots of the blocks of queries and of keys.
        query, key, value: (b, H), (b', H) and (b', Hv).
        refs: what is known of queries (1, b) and of keys (1, b'); the results, (b, Hv) and (1, b); what is carried
            from step to step, (Hv, b), (1, b) and (1, b).
    """
    import jax.numpy as jnp

    numbers, (output, normalizer, added, largest, total) = refs[:-5], refs[-5:]

    def begin():
        added[...], total[...] = jnp.zeros(added.shape), jnp.zeros(total.shape)
        largest[...] = jnp.full(largest.shape, HIDDEN)

    def step(some_hidden):
        scores = _scores(plan, starts, query[...], key[...], numbers, some_hidden)
        live = scores.live()
        highest = jnp.maximum(largest[...], live.max(0, keepdims=True))
        weights, shrunk = scores.counted(jnp.exp2(live - highest)), jnp.exp2(largest[...] - highest)
        added[...] = added[...] * shrunk + product(value[...], weights.astype(value.dtype), (0, 0))
        largest[...], total[...] = highest, total[...] * shrunk + weights.sum(0, keepdims=True)

    def end():
        some = largest[...] > HIDDEN
        sums = jnp.where(some, total[...], 1.0)
        output[...] = jnp.where(some, added[...] / sums, 0.0).T.astype(output.dtype)
        normalizer[...] = largest[...] + jnp.log2(sums)

    return Steps(begin, step, end)


def differentiate_queries(
    plan: Plan,
    starts: tuple[Any, Any],
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> Steps:
    """Gives the gradient of a block of queries.

    Args:
        plan: as in `attend_block`, like `starts`, `query`, `key`, `value` and `normalizer`.
        upstream: the gradient of the output, (b, Hv).
        common: what the gradients of all weights of a query have in common, (1, b).
        refs: numbers as in `attend_block`; the results, (b, H), and with a span the gradient of the reach, (1, b); what
            is carried, of the same shapes.
    """
    import jax.numpy as jnp

    count = 1 + (plan.span is not None)
    numbers, outputs, carried = refs[: -2 * count], refs[-2 * count : -count], refs[-count:]

    def begin():
        for added in carried:
            added[...] = jnp.zeros(added.shape)

    def step(some_hidden):
        keys, changes = key[...], upstream[...]
        scores = _scores(plan, starts, query[...], keys, numbers, some_hidden)
        changed = scores.exponentials(normalizer[...]) * (product(value[...], changes, (1, 1)) - common[...])
        carried[0][...] += product(scores.of_products(scores.counted(changed)).astype(keys.dtype), keys, (0, 0))
        if plan.span is not None:
            carried[1][...] += (changed * scores.slope).sum(0, keepdims=True)

    def end():
        for output, added in zip(outputs, carried, strict=True):
            output[...] = added[...].astype(output.dtype)

    return Steps(begin, step, end)


def differentiate_keys(
    plan: Plan,
    starts: tuple[Any, Any],
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> Steps:
    """Gives the gradients of a block of keys and of their values.

    Args:
        plan: as in `differentiate_queries`, and so on up to `common`.
        refs: numbers as there; the results, (b', H) and (b', Hv), and what is carried, (b', H) and (b', Hv).
    """
    import jax.numpy as jnp

    numbers, outputs, (of_keys, of_values) = refs[:-4], refs[-4:-2], refs[-2:]

    def begin():
        of_keys[...], of_values[...] = jnp.zeros(of_keys.shape), jnp.zeros(of_values.shape)

    def step(some_hidden):
        queries, changes = query[...], upstream[...]
        scores = _scores(plan, starts, queries, key[...], numbers, some_hidden)
        weights = scores.counted(scores.exponentials(normalizer[...]))
        changed = weights * (product(value[...], changes, (1, 1)) - common[...])
        of_values[...] += product(weights.astype(changes.dtype), changes, (1, 0))
        of_keys[...] += product(scores.of_products(changed).astype(queries.dtype), queries, (1, 0))

    def end():
        for output, added in zip(outputs, (of_keys, of_values), strict=True):
            output[...] = added[...].astype(output.dtype)

    return Steps(begin, step, end)


def _scores(plan, starts, query, key, numbers, some_hidden):
    """Returns the `Scores` of two blocks, (b', b)."""
    import jax

    products = product(key, query, (1, 1))
    if not some_hidden:
        return whole_scores(plan, products)
    queries, keys = (
        start + jax.lax.broadcasted_iota("int32", products.shape, axis)
        for start, axis in zip(starts, (1, 0), strict=True)
    )
    of_queries, of_keys = numbers[: plan.query_numbers], numbers[plan.query_numbers :]
    known = [x[...] for x in of_queries], [_column(x[...]) for x in of_keys]
    return scores_of(plan, products, (queries, keys), known)


def _column(row):
    """Returns a row of numbers (1, b) as (b, 1)."""
    import jax.numpy as jnp

    return jnp.broadcast_to(row, (LANES, row.shape[1])).T[:, :1]
