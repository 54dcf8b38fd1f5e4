"""Flash attention for JAX on TPUs, by Pallas programs that Mosaic compiles.

A grid step computes one block of queries and one of keys while the device loads the next blocks. Scores have the layout
[key, query]. Statistics per query are then row vectors (1, b) for b queries, which fit the memory layout of TPUs.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from tf_sparse_attention.kernels.availability import UnsupportedByKernel
from tf_sparse_attention.kernels.block_scores import MASKED, full_scores, masked_scores, product
from tf_sparse_attention.kernels.flash_attention import Programs, flash_attention
from tf_sparse_attention.kernels.kernel_mask import BlockTable, KernelMask, KernelSpec, MaskData, block_table
from tf_sparse_attention.types import Tensor

DTYPES = {"float32", "bfloat16"}  # TPUs do not read float16
LANES = 128
LARGEST_BLOCK = 512
MAX_BLOCKS = 256  # of queries or of keys: the table of blocks is in scalar memory


class Steps(NamedTuple):
    """Phases of the program of a block.

    Attributes:
        begin, end: functions without arguments, before the first step and after the last.
        step: function with one boolean argument, `is_masked`: whether to apply the mask to the two blocks.
    """

    begin: Callable
    step: Callable
    end: Callable


def attend(spec: KernelSpec, query: Tensor, key: Tensor, value: Tensor, data: MaskData) -> tuple[Tensor, Tensor]:
    """Compute attention and its log-sum-exp, see `flash_attention`."""
    return flash_attention(PROGRAMS, spec, query, key, value, data)


def check_arrays(query: Tensor, key: Tensor, value: Tensor, interpret: bool = False) -> None:
    """Raise `UnsupportedByKernel` unless the kernel takes arrays of these dtypes."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    if len(dtypes) > 1 or not dtypes <= DTYPES:
        raise UnsupportedByKernel(f"kernels of TPUs need float32 or bfloat16, not {' and '.join(sorted(dtypes))}")


def block_sizes(mask: KernelMask, lengths: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of queries and keys per block.

    The block size is about the reach of the mask. In larger blocks most pairs are masked; smaller blocks have more
    overhead.
    """
    limits = (abs(limit) for region in mask.regions for limit in region.limits)
    reach, block, longest = mask.reach or max(limits) + 1, LANES, max(lengths)
    while 2 * block <= min(LARGEST_BLOCK, reach, longest) or longest > MAX_BLOCKS * block:
        block *= 2
    queries, keys = (min(block, -(-length // LANES) * LANES) for length in lengths)
    return queries, keys


def _run(program, spec, side, arrays, sides, shapes):
    """Run a program, see `Programs`. Rows of statistics and data are (1, T or S), the layout of the device."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    rows, (counts, indices) = arrays[0].shape[0], _padded(block_table(spec, by_keys=side == 1))
    arrays = [x[:, None] if x.ndim == 2 else x for x in arrays]
    outputs = [((shape[0], 1, shape[1]) if len(shape) == 2 else shape, dtype) for shape, dtype in shapes]
    block = spec.blocks[side]
    scratch = [(1, block) if shape[1] == 1 else (block, shape[2]) for shape, _ in outputs]
    if program is _attend_block:
        scratch = [scratch[0][::-1], scratch[1], scratch[1]]

    def block_spec(shape, array_side):
        share, block, is_row = rows // shape[0], spec.blocks[array_side], shape[1] == 1

        def index(row, own, step, counts, indices):
            number = own if array_side == side else indices[own, step]
            return (row if share == 1 else jax.lax.div(row, share), *((0, number) if is_row else (number, 0)))

        return pallas.BlockSpec((None, *((1, block) if is_row else (block, shape[2]))), index)

    grid = tpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(rows, *indices.shape),
        in_specs=[block_spec(x.shape, array_side) for x, array_side in zip(arrays, sides, strict=True)],
        out_specs=[block_spec(shape, side) for shape, _ in outputs],
        scratch_shapes=[tpu.VMEM(shape, np.dtype("float32")) for shape in scratch],
    )
    found = pallas.pallas_call(
        functools.partial(_run_step, program, spec, side),
        grid_spec=grid,
        out_shape=[jax.ShapeDtypeStruct(*each) for each in outputs],
        interpret=spec.interpret,
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="{}_{}_by_{}".format(program.__name__.strip("_"), *spec.blocks),
    )(counts, indices, *arrays)
    return [x.reshape(shape) for x, (shape, _) in zip(found, shapes, strict=True)]


def _padded(table: BlockTable) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of partly masked and of all blocks per row (rows, 2), and block numbers (rows, largest count).

    Rows are padded by their last block, which the device does not load again.
    """
    begin, partial, end = table.bounds.T
    steps = np.arange(max((end - begin).max(), 1), dtype="int32")
    at = np.minimum(begin[:, None] + steps, np.maximum(end - 1, 0)[:, None])
    return np.stack([partial - begin, end - begin], axis=-1), table.indices[at]


def _run_step(program, spec, side, counts, indices, *refs):
    """Run one step of a program."""
    from jax.experimental import pallas

    own, step = pallas.program_id(1), pallas.program_id(2)
    starts = [own * spec.blocks[side], indices[own, step] * spec.blocks[1 - side]]
    steps = program(spec, starts[:: 1 - 2 * side], *refs)
    pallas.when(step == 0)(steps.begin)
    pallas.when(step < counts[own, 0])(lambda: steps.step(True))
    if not spec.masks_every_block:
        pallas.when((step >= counts[own, 0]) & (step < counts[own, 1]))(lambda: steps.step(False))
    pallas.when(step == pallas.num_programs(2) - 1)(steps.end)


def _attend_block(spec, starts, query, key, value, *refs):
    """Compute the output and the normalizers of a block of queries.

    Args:
        spec: a `KernelSpec`.
        starts: first indices of the blocks of queries and of keys.
        query, key, value: (b, H), (b', H) and (b', Hv).
        refs: query data (1, b) and key data (1, b'); results (b, Hv) and (1, b); accumulators (Hv, b), (1, b), (1, b).
    """
    import jax.numpy as jnp

    data, (output, normalizer, weighted, largest, total) = refs[:-5], refs[-5:]

    def begin():
        weighted[...], total[...] = jnp.zeros(weighted.shape), jnp.zeros(total.shape)
        largest[...] = jnp.full(largest.shape, MASKED)

    def step(is_masked):
        scores = _scores(spec, starts, query[...], key[...], data, is_masked)
        values = scores.inside_span()
        highest = jnp.maximum(largest[...], values.max(0, keepdims=True))
        weights, decay = scores.weigh(jnp.exp2(values - highest)), jnp.exp2(largest[...] - highest)
        weighted[...] = weighted[...] * decay + product(value[...], weights.astype(value.dtype), (0, 0))
        largest[...], total[...] = highest, total[...] * decay + weights.sum(0, keepdims=True)

    def end():
        has_key = largest[...] > MASKED
        sums = jnp.where(has_key, total[...], 1.0)
        output[...] = jnp.where(has_key, weighted[...] / sums, 0.0).T.astype(output.dtype)
        normalizer[...] = largest[...] + jnp.log2(sums)

    return Steps(begin, step, end)


def _differentiate_queries(spec, starts, query, key, value, upstream, normalizer, delta, *refs):
    """Compute the gradient of a block of queries and, with a span, of their reach.

    Args:
        spec, starts, query, key, value: as in `_attend_block`.
        upstream: gradient of the output (b, Hv).
        normalizer, delta: (1, b).
        refs: data as in `_attend_block`; results (b, H) and, with a span, (1, b); accumulators of the same shapes.
    """
    count = 1 + (spec.mask.span is not None)
    data, outputs, sums = refs[: -2 * count], refs[-2 * count : -count], refs[-count:]

    def step(is_masked):
        keys, upstreams = key[...], upstream[...]
        scores = _scores(spec, starts, query[...], keys, data, is_masked)
        gradients = scores.exponentials(normalizer[...]) * (product(value[...], upstreams, (1, 1)) - delta[...])
        product_gradients = scores.differentiate_cap(scores.weigh(gradients))
        sums[0][...] += product(product_gradients.astype(keys.dtype), keys, (0, 0))
        if spec.mask.span is not None:
            sums[1][...] += (gradients * scores.span_slope).sum(0, keepdims=True)

    return _sum_steps(step, outputs, sums)


def _differentiate_keys(spec, starts, query, key, value, upstream, normalizer, delta, *refs):
    """Compute the gradients of a block of keys and values.

    Args:
        spec, starts, query, key, value, upstream, normalizer, delta: as in `_differentiate_queries`.
        refs: data as in `_attend_block`; results (b', H) and (b', Hv); accumulators of the same shapes.
    """
    data, outputs, (key_gradients, value_gradients) = refs[:-4], refs[-4:-2], refs[-2:]

    def step(is_masked):
        queries, upstreams = query[...], upstream[...]
        scores = _scores(spec, starts, queries, key[...], data, is_masked)
        weights = scores.weigh(scores.exponentials(normalizer[...]))
        gradients = weights * (product(value[...], upstreams, (1, 1)) - delta[...])
        value_gradients[...] += product(weights.astype(upstreams.dtype), upstreams, (1, 0))
        key_gradients[...] += product(scores.differentiate_cap(gradients).astype(queries.dtype), queries, (1, 0))

    return _sum_steps(step, outputs, (key_gradients, value_gradients))


def _sum_steps(step, outputs, sums):
    """Return the `Steps` that write sums over all steps."""
    import jax.numpy as jnp

    def begin():
        for accumulator in sums:
            accumulator[...] = jnp.zeros(accumulator.shape)

    def end():
        for output, accumulator in zip(outputs, sums, strict=True):
            output[...] = accumulator[...].astype(output.dtype)

    return Steps(begin, step, end)


def _scores(spec, starts, query, key, data, is_masked):
    """Return the `Scores` of two blocks, (b', b)."""
    import jax
    import jax.numpy as jnp

    products = product(key, query, (1, 1))
    if not is_masked:
        return full_scores(spec, products)
    queries, keys = (
        start + jax.lax.broadcasted_iota("int32", products.shape, axis)
        for start, axis in zip(starts, (1, 0), strict=True)
    )
    rows = [x[...] for x in data]  # (1, b or b')
    query_data = dict(zip(spec.names[0], rows, strict=False))
    columns = (jnp.broadcast_to(x, (LANES, x.shape[1])).T[:, :1] for x in rows[len(query_data) :])
    return masked_scores(spec, products, (queries, query_data), (keys, dict(zip(spec.names[1], columns, strict=True))))


PROGRAMS = Programs(_run, _attend_block, _differentiate_queries, _differentiate_keys)
