"""Flash attention for JAX on NVIDIA GPUs, by Pallas programs that Triton compiles.

A program computes one block of queries, or of keys, over the visible blocks of the other side.
"""

import functools
import math

import keras

from tf_sparse_attention.kernels.availability import UnsupportedByKernel
from tf_sparse_attention.kernels.block_scores import MASKED, full_scores, masked_scores, product
from tf_sparse_attention.kernels.flash_attention import Programs, flash_attention
from tf_sparse_attention.kernels.kernel_mask import KernelMask, KernelSpec, MaskData, block_table
from tf_sparse_attention.ops.shapes import pad_axis
from tf_sparse_attention.types import Tensor

DTYPES = {"bfloat16", "float16"}
SMALLEST_HEAD, LARGEST_HEAD = 16, 128
BLOCKS, WARPS = (64, 64), 4  # the fastest of those measured on an H200
MAX_SIZE = 2**31 - 1  # elements per array: Triton's offsets are int32


def attend(spec: KernelSpec, query: Tensor, key: Tensor, value: Tensor, data: MaskData) -> tuple[Tensor, Tensor]:
    """Compute attention and its log-sum-exp, see `flash_attention`."""
    width = value.shape[-1]
    query, key, value = (pad_axis(x, -1, 0, _padded_width(x.shape[-1]) - x.shape[-1]) for x in (query, key, value))
    output, log_sum_exp = flash_attention(PROGRAMS, spec, query, key, value, data)
    return output[..., :width], log_sum_exp


def check_arrays(query: Tensor, key: Tensor, value: Tensor, interpret: bool = False) -> None:
    """Raise `UnsupportedByKernel` unless the kernel takes arrays of these dtypes and sizes."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    if len(dtypes) > 1 or not (interpret or dtypes <= DTYPES):
        raise UnsupportedByKernel(f"kernels of GPUs need bfloat16 or float16, not {' and '.join(sorted(dtypes))}")
    width = max(query.shape[-1], value.shape[-1])
    if width > LARGEST_HEAD:
        raise UnsupportedByKernel(f"heads have {width} channels; kernels of GPUs take up to {LARGEST_HEAD}")
    if max(math.prod(x.shape) for x in (query, key, value)) > MAX_SIZE:
        raise UnsupportedByKernel(f"queries, keys or values have more than {MAX_SIZE:,} elements")


def block_sizes(mask: KernelMask, lengths: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of queries and keys per block."""
    return BLOCKS


def _padded_width(width):
    """Return the next power of 2, which Triton needs."""
    return max(1 << (width - 1).bit_length(), SMALLEST_HEAD)


def _run(program, spec, side, arrays, sides, shapes):
    """Run a program, see `Programs`. It reads its block of one side and all of a row of the other side."""
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    rows, block, table = arrays[0].shape[0], spec.blocks[side], block_table(spec, by_keys=side == 1)
    stages = 3 if max(x.shape[-1] for x in arrays[:3]) <= 64 else 2

    def block_spec(shape, array_side):
        share, zeros, is_own = rows // shape[0], (0,) * len(shape[2:]), array_side == side
        sizes = (None, block if is_own else shape[1], *shape[2:])
        return pallas.BlockSpec(sizes, lambda i, row: (jax.lax.div(row, share), i if is_own else 0, *zeros))

    bounds = pallas.BlockSpec((None, table.bounds.shape[1]), lambda i, row: (i, 0))
    indices = pallas.BlockSpec(table.indices.shape, lambda i, row: (0,))
    return pallas.pallas_call(
        functools.partial(program, spec),
        grid=(len(table.bounds), rows),
        in_specs=[bounds, indices, *(block_spec(*each) for each in zip((x.shape for x in arrays), sides, strict=True))],
        out_specs=[block_spec(shape, side) for shape, _ in shapes],
        out_shape=[jax.ShapeDtypeStruct(*each) for each in shapes],
        interpret=spec.interpret,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=stages),
        name=program.__name__.strip("_"),
    )(*table, *arrays)


def _attend_block(spec, bounds, indices, query, key, value, *refs):
    """Compute the output and the normalizers of a block of queries.

    Args:
        spec: a `KernelSpec`.
        bounds, indices: the bounds of this block in a `BlockTable`, and all of its indices.
        query: (b, H), of this block.
        key, value: (S, H) and (S, Hv).
        refs: query data (b,) of this block and key data (S,); results (b, Hv) and (b,).
    """
    import jax.numpy as jnp

    data, (output, normalizer) = refs[:-2], refs[-2:]
    queries, size = query[...], spec.blocks[0]
    own, others = _own_side(spec, 0, data)

    def step(at, carry, is_masked):
        weighted, largest, total = carry
        part, keys = _other_side(spec, 1, indices[at], others)
        scores = _scores(spec, product(queries, key[part, :], (1, 1)), own, keys, is_masked)
        values = scores.inside_span()
        highest = jnp.maximum(largest, values.max(-1))
        weights, decay = scores.weigh(jnp.exp2(values - highest[:, None])), jnp.exp2(largest - highest)
        block_values = value[part, :]
        weighted = weighted * decay[:, None] + product(weights.astype(block_values.dtype), block_values, (1, 0))
        return weighted, highest, total * decay + weights.sum(-1)

    carry = jnp.zeros((size, value.shape[-1])), jnp.full((size,), MASKED), jnp.zeros((size,))
    weighted, largest, total = _loop(spec, bounds, step, carry)
    has_key = largest > MASKED
    total = jnp.where(has_key, total, 1.0)
    output[...] = jnp.where(has_key[:, None], weighted / total[:, None], 0.0).astype(output.dtype)
    normalizer[...] = largest + jnp.log2(total)


def _differentiate_queries(spec, bounds, indices, query, key, value, upstream, normalizer, delta, *refs):
    """Compute the gradient of a block of queries and, with a span, of their reach.

    Args:
        spec, bounds, indices, query, key, value: as in `_attend_block`.
        upstream: gradient of the output (b, Hv).
        normalizer, delta: (b,).
        refs: data as in `_attend_block`; results (b, H) and, with a span, (b,).
    """
    count = 1 + (spec.mask.span is not None)
    data, outputs = refs[:-count], refs[-count:]
    queries, upstreams = query[...], upstream[...]
    normalizers, deltas = normalizer[...][:, None], delta[...][:, None]
    own, others = _own_side(spec, 0, data)

    def step(at, carry, is_masked):
        part, other = _other_side(spec, 1, indices[at], others)
        keys = key[part, :]
        scores = _scores(spec, product(queries, keys, (1, 1)), own, other, is_masked)
        gradients = scores.exponentials(normalizers) * (product(upstreams, value[part, :], (1, 1)) - deltas)
        product_gradients = scores.differentiate_cap(scores.weigh(gradients))
        found = [product(product_gradients.astype(keys.dtype), keys, (1, 0))]
        if spec.mask.span is not None:
            found.append((gradients * scores.span_slope).sum(-1))
        return tuple(a + b for a, b in zip(carry, found, strict=True))

    _write_sums(spec, bounds, step, outputs)


def _differentiate_keys(spec, bounds, indices, query, key, value, upstream, normalizer, delta, *refs):
    """Compute the gradients of a block of keys and values.

    Args:
        spec, bounds, indices: as in `_attend_block`.
        query, upstream, normalizer, delta: as in `_differentiate_queries`, of all queries: (T, H) and so on.
        key, value: (b, H) and (b, Hv), of this block.
        refs: query data (T,) and key data (b,) of this block; results (b, H) and (b, Hv).
    """
    data, outputs = refs[:-2], refs[-2:]
    keys, values = key[...], value[...]
    own, others = _own_side(spec, 1, data)

    def step(at, carry, is_masked):
        key_gradients, value_gradients = carry
        part, other = _other_side(spec, 0, indices[at], others)
        queries, upstreams = query[part, :], upstream[part, :]
        scores = _scores(spec, product(queries, keys, (1, 1)), other, own, is_masked)
        weights = scores.weigh(scores.exponentials(normalizer[part][:, None]))
        gradients = weights * (product(upstreams, values, (1, 1)) - delta[part][:, None])
        value_gradients = value_gradients + product(weights.astype(upstreams.dtype), upstreams, (0, 0))
        product_gradients = scores.differentiate_cap(gradients)
        return key_gradients + product(product_gradients.astype(queries.dtype), queries, (0, 0)), value_gradients

    _write_sums(spec, bounds, step, outputs)


def _write_sums(spec, bounds, step, outputs):
    """Write sums over all visible blocks."""
    import jax.numpy as jnp

    carry = tuple(jnp.zeros(each.shape) for each in outputs)
    for output, total in zip(outputs, _loop(spec, bounds, step, carry), strict=True):
        output[...] = total.astype(output.dtype)


def _loop(spec, bounds, step, carry):
    """Run a step for each visible block; full blocks need no mask."""
    import jax

    carry = jax.lax.fori_loop(bounds[0], bounds[1], lambda at, carry: step(at, carry, True), carry)
    if spec.masks_every_block:
        return carry
    return jax.lax.fori_loop(bounds[1], bounds[2], lambda at, carry: step(at, carry, False), carry)


def _own_side(spec, side, data):
    """Return the first index and the data of this program's block, and the data of the other side."""
    from jax.experimental import pallas

    count = len(spec.names[0])
    own, others = (data[:count], data[count:])[:: 1 - 2 * side]
    start = pallas.program_id(0) * spec.blocks[side]
    return (start, dict(zip(spec.names[side], (x[...] for x in own), strict=True))), others


def _other_side(spec, side, number, data):
    """Return the slice of a block of the other side, and its first index and data."""
    from jax.experimental import pallas

    part = pallas.dslice(number * spec.blocks[side], spec.blocks[side])
    return part, (part.start, dict(zip(spec.names[side], (x[part] for x in data), strict=True)))


def _scores(spec, products, query, key, is_masked):
    """Return the `Scores` of two blocks, (b, b'), from their first indices and data (b,) and (b',)."""
    import jax

    if not is_masked:
        return full_scores(spec, products)
    queries = query[0] + jax.lax.broadcasted_iota("int32", (spec.blocks[0], 1), 0)
    keys = key[0] + jax.lax.broadcasted_iota("int32", (1, spec.blocks[1]), 1)
    query_data = {name: x[:, None] for name, x in query[1].items()}
    return masked_scores(spec, products, (queries, query_data), (keys, {name: x[None] for name, x in key[1].items()}))


PROGRAMS = Programs(_run, _attend_block, _differentiate_queries, _differentiate_keys)
