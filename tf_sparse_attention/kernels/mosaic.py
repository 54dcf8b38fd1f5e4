"""Attention on TPUs of JAX over the pairs of slots that a rule allows, by kernels that Mosaic compiles.

One step of the grid computes two blocks of slots, which the device loads while it computes those before.
"""

import functools

import keras
import numpy as np

from tf_sparse_attention.kernels.attention import Programs, attend_by
from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.kernels.mosaic_programs import LANES, attend_block, differentiate_keys, differentiate_queries
from tf_sparse_attention.kernels.plan import Plan, kinds_of_numbers, table_of
from tf_sparse_attention.kernels.rules import visible_blocks
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
