"""FlashAttention-2 (Dao 2023, sections 3.1 and 3.2) with masks: scores are never stored, masked blocks are skipped.

One program computes each sum in a fixed order, so results are deterministic.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from tf_sparse_attention.kernels.block_scores import LOG2_E, MASKED
from tf_sparse_attention.kernels.kernel_mask import SPAN_REACH, KernelSpec, MaskData
from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.shapes import pad_axis, slice_axis
from tf_sparse_attention.types import Tensor

# Side (0: queries, 1: keys) of queries, keys, values, gradients of outputs, normalizers and delta.
SIDES = (0, 1, 1, 0, 0, 0)


class Programs(NamedTuple):
    """Pallas programs of a device.

    Each program computes one block of queries over its visible key blocks, or one block of keys over its visible query
    blocks.

    Attributes:
        run: function that runs a program and returns the list of its results. Arguments: the program; a `KernelSpec`;
            the side of its blocks (0: queries, 1: keys); arrays (R', T or S, X) or (R', T or S), padded to whole
            blocks; the side of each array; the shape and dtype of each result. The first array has R rows. An array
            with R' rows is shared: R / R' consecutive rows of the first array use the same row of that array.
        attend: program of outputs and normalizers. A normalizer is the base-2 logarithm of the softmax denominator, or
            `MASKED` (-2e38) if the query has no key.
        differentiate_queries: program of gradients of the queries and, with a span, of their reach.
        differentiate_keys: program of gradients of the keys and values.
    """

    run: Callable
    attend: Callable
    differentiate_queries: Callable
    differentiate_keys: Callable


def flash_attention(
    programs: Programs, spec: KernelSpec, query: Tensor, key: Tensor, value: Tensor, data: MaskData
) -> tuple[Tensor, Tensor]:
    """Compute softmax attention under a mask.

    Args:
        programs: a `Programs`.
        spec: a `KernelSpec`.
        query: scaled queries (B, N, T, H).
        key: (B, M, S, H), M heads, each shared by N / M consecutive query heads.
        value: (B, M, S, Hv).
        data: data of the mask.

    Returns:
        Output (B, N, T, Hv) in the dtype of `query`, and the log-sum-exp, float32 (B, N, T). For a query without a key,
        the output is zero and the log-sum-exp is the minimum of float32.
    """
    arrays = [query, key, value, *data[0].values(), *data[1].values()]
    return _over_devices(lambda *parts: _attend_rows(programs, spec, *parts), arrays)


def _over_devices(function: Callable, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply a function to the shard of each device, because compilers cannot partition the kernels.

    Args:
        function: function of arrays (b, n, ...) to a tuple of such arrays, independent for each row and head.
        arrays: (B or 1, N, M or 1, ...), the first with all rows and heads.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return function(*arrays)
    import jax
    from jax.sharding import PartitionSpec

    mesh = distribution.device_mesh.backend_mesh
    row_axis = distribution.batch_dim_name
    head_axes = tuple(name for name in mesh.axis_names if name != row_axis)
    batch = arrays[0].shape[0]
    # Each device computes all rows, or all heads, if they do not divide evenly.
    rows = row_axis if batch % mesh.shape[row_axis] == 0 else None
    parts = math.prod(mesh.shape[name] for name in head_axes)
    # Shared key heads are divided with their query heads or not at all.
    heads = head_axes if all(x.shape[1] % parts == 0 for x in arrays if x.shape[1] != 1) else None
    specs = tuple(
        PartitionSpec(rows if x.shape[0] == batch else None, heads if x.shape[1] > 1 else None) for x in arrays
    )
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)(*arrays)


def _attend_rows(programs, spec, query, key, value, *data):
    """Compute attention of the rows of one device."""
    batch, heads, length, _ = query.shape
    queries, keys = spec.padded_lengths
    rows = [
        pad_axis(x.reshape(-1, *x.shape[2:]), -2, 0, size - x.shape[2])
        for x, size in ((query, queries), (key, keys), (value, keys))
    ]
    sizes = [queries] * len(spec.names[0]) + [keys] * len(spec.names[1])
    padded = [
        pad_axis(x.reshape(-1, x.shape[-1]), -1, 0, size - x.shape[-1]) for x, size in zip(data, sizes, strict=True)
    ]
    results = _differentiable_attention(programs, spec)(*rows, *padded)
    output, log_sum_exp = (slice_axis(x, 1, 0, length) for x in results)
    return output.reshape(batch, heads, length, -1), log_sum_exp.reshape(batch, heads, length)


def _sum_shared_rows(gradient, rows):
    """Sum gradients (R, S, X) over consecutive rows that share keys: (R', S, X)."""
    if len(gradient) == rows:
        return gradient
    return gradient.reshape(rows, -1, *gradient.shape[1:]).astype("float32").sum(1).astype(gradient.dtype)


@functools.lru_cache(maxsize=64)
def _differentiable_attention(programs, spec):
    """Return attention of padded rows to outputs and log-sum-exps, with a custom gradient."""
    import jax
    import jax.numpy as jnp

    names = (*spec.names[0], *spec.names[1])

    def run(program, side, arrays, data, shapes):
        sides = (*SIDES[: len(arrays)], *(0 for _ in spec.names[0]), *(1 for _ in spec.names[1]))
        return programs.run(program, spec, side, (*arrays, *data), sides, shapes)

    @jax.custom_vjp
    def attend(query, key, value, *data):
        return attend_forward(query, key, value, *data)[0]

    def attend_forward(query, key, value, *data):
        rows, length, _ = query.shape
        shapes = [((rows, length, value.shape[-1]), query.dtype), ((rows, length), "float32")]
        output, normalizer = run(programs.attend, 0, (query, key, value), data, shapes)
        log_sum_exp = jnp.where(normalizer > MASKED, normalizer / LOG2_E, lowest("float32"))
        return (output, log_sum_exp), (query, key, value, data, output, normalizer)

    def attend_backward(residuals, upstreams):
        query, key, value, data, output, normalizer = residuals
        upstream, sum_upstream = upstreams
        # delta = rowsum(dO * O), FlashAttention 2022, equation 4. The gradient of the log-sum-exp adds to each score in
        # proportion to its weight.
        delta = (output.astype("float32") * upstream.astype("float32")).sum(-1) - sum_upstream
        normalizer = jnp.where(normalizer > MASKED, normalizer, 0.0)  # so that queries without keys have weights 0
        arrays = (query, key, value, upstream.astype(query.dtype), normalizer, delta)
        shapes = [(query.shape, query.dtype)] + [(delta.shape, "float32")] * (spec.mask.span is not None)
        query_gradient, *reach_gradient = run(programs.differentiate_queries, 0, arrays, data, shapes)
        shapes = [((len(query), *x.shape[1:]), x.dtype) for x in (key, value)]
        key_gradients = run(programs.differentiate_keys, 1, arrays, data, shapes)
        data_gradients = (reach_gradient[0] if name == SPAN_REACH else None for name in names)
        return query_gradient, *(_sum_shared_rows(x, len(key)) for x in key_gradients), *data_gradients

    attend.defvjp(attend_forward, attend_backward)
    return attend
