"""Flash attention and its gradient by the programs of a device: scores are never stored, masked blocks are skipped.

FlashAttention-2 (Dao 2023, sections 3.1 and 3.2). One program computes each sum in a fixed order, so results repeat
bit for bit.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras

from tf_sparse_attention.kernels.block_scores import LOG2_E, MASKED
from tf_sparse_attention.kernels.kernel_mask import SPAN_REACH, KernelMask, KernelSpec
from tf_sparse_attention.ops.blocks import pad_axis, slice_axis
from tf_sparse_attention.ops.softmax import lowest
from tf_sparse_attention.types import Tensor


class Programs(NamedTuple):
    """Programs of a device: functions of a `KernelSpec` and of rows (R, T or S, X), in whole blocks.

    Keys, values and data may have R' < R rows, each shared by R / R' consecutive rows.

    Attributes:
        forward: function of queries, keys, values, query data and key data (R', T or S) to outputs (R, T, Hv) and
            normalizers (R, T): the logarithm to base 2 of the sum of exponentials, `MASKED` of a query without a key.
        query_gradients: function of queries, keys, values, gradients of outputs, normalizers, delta (R, T) and data to
            gradients of the queries (R, T, H) and, with a span, of their reach (R, T).
        key_gradients: function of the same arguments to gradients of the keys (R, S, H) and values (R, S, Hv), not yet
            summed over the rows that share them.
    """

    forward: Callable
    query_gradients: Callable
    key_gradients: Callable


def flash_attention(
    programs: Programs, spec: KernelSpec, query: Tensor, key: Tensor, value: Tensor, mask: KernelMask
) -> tuple[Tensor, Tensor]:
    """Compute softmax attention under a mask.

    Args:
        programs: a `Programs`.
        spec: the `KernelSpec` of the mask.
        query: scaled queries (B, N, T, H).
        key: (B, M, S, H), M heads, each shared by N / M consecutive query heads.
        value: (B, M, S, Hv).
        mask: a `KernelMask`.

    Returns:
        Output (B, N, T, Hv) in the dtype of `query`, and the log-sum-exp, float32 (B, N, T). A query without a key has
        zeros and the lowest number.
    """
    arrays = [query, key, value, *mask.query_data.values(), *mask.key_data.values()]
    return _over_devices(lambda *parts: _attend_rows(programs, spec, *parts), arrays)


def _over_devices(function: Callable, arrays: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply a function to the part of a batch on each device, which no compiler could divide by itself.

    Args:
        function: function of arrays (b, n, ...) to a tuple of such arrays, independent for each row and head.
        arrays: (B or 1, N, M or 1, ...), the first with all rows and heads.

    Returns:
        Tuple of arrays (B, N, ...).
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
    sizes = [queries] * len(spec.query_names) + [keys] * len(spec.key_names)
    padded = [
        pad_axis(x.reshape(-1, x.shape[-1]), -1, 0, size - x.shape[-1]) for x, size in zip(data, sizes, strict=True)
    ]
    results = _differentiable_attention(programs, spec)(*rows, *padded)
    output, log_sum_exp = (slice_axis(x, 1, 0, length) for x in results)
    return output.reshape(batch, heads, length, -1), log_sum_exp.reshape(batch, heads, length)


def _sum_shared_rows(gradient, rows):
    """Sum gradients (R, S, X) over consecutive rows that share a key: (R', S, X)."""
    if len(gradient) == rows:
        return gradient
    return gradient.reshape(rows, -1, *gradient.shape[1:]).astype("float32").sum(1).astype(gradient.dtype)


@functools.lru_cache(maxsize=64)
def _differentiable_attention(programs, spec):
    """Return attention of padded rows to outputs and log-sum-exps, with a custom gradient."""
    import jax
    import jax.numpy as jnp

    def with_natural_logarithm(output, normalizer):
        return output, jnp.where(normalizer > MASKED, normalizer / LOG2_E, lowest("float32"))

    @jax.custom_vjp
    def attend(query, key, value, *data):
        return with_natural_logarithm(*programs.forward(spec, query, key, value, *data))

    def attend_forward(query, key, value, *data):
        output, normalizer = programs.forward(spec, query, key, value, *data)
        return with_natural_logarithm(output, normalizer), (query, key, value, data, output, normalizer)

    def attend_backward(residuals, upstreams):
        query, key, value, data, output, normalizer = residuals
        upstream, sum_upstream = upstreams
        # delta = rowsum(dO * O), FlashAttention 2022, equation 4. The gradient of the log-sum-exp adds to each score in
        # proportion to its weight.
        delta = (output.astype("float32") * upstream.astype("float32")).sum(-1) - sum_upstream
        normalizer = jnp.where(normalizer > MASKED, normalizer, 0.0)  # as plain operations have it, see `attend`
        arrays = (query, key, value, upstream.astype(query.dtype), normalizer, delta, *data)
        query_gradient, *reach_gradient = programs.query_gradients(spec, *arrays)
        key_gradients = (_sum_shared_rows(x, len(key)) for x in programs.key_gradients(spec, *arrays))
        names = (*spec.query_names, *spec.key_names)
        data_gradients = (reach_gradient[0] if name == SPAN_REACH else None for name in names)
        return query_gradient, *key_gradients, *data_gradients

    attend.defvjp(attend_forward, attend_backward)
    return attend
