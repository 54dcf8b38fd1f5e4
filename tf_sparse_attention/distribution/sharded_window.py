"""Sequence parallelism on JAX: sliding-window attention with halo exchange between neighbor devices."""

import functools

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.kernels.availability import use_kernel
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.engine.attention import attend_pattern
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Tensor


def sharded_window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int,
    device_mesh: keras.distribution.DeviceMesh,
    sequence_axis: str = "sequence",
    batch_axis: str | None = None,
    causal: bool = False,
    padding_mask: Tensor | None = None,
) -> Tensor:
    """Compute sliding-window attention over a sequence that is sharded over P devices.

    out_i = sum_j p_ij v_j with p_i = softmax(q_i . k_j / sqrt(H)) over |i - j| < window, or 0 <= i - j < window if
    causal. This is the result of `LocalAttention` on the whole sequence, without position encoding. Each device holds
    T / P positions and computes their outputs in O(T / P window) time. The device receives the keys and values of up to
    window - 1 positions before its shard. Without `causal`, each device also receives up to window - 1 positions after
    its shard. `jax.lax.ppermute` transfers these keys and values from neighbor devices. The transfer is at most
    (window - 1) N (H + Hv) numbers per batch row and side, independent of T.

    Works inside and outside of `jax.jit` and `jax.grad`. In the backward pass, gradients of keys and values return to
    their devices with the reverse `ppermute`.

    Args:
        query: (B, T, N, H).
        key: (B, T, N, H).
        value: (B, T, N, Hv).
        window: positions on each side that a query attends to, including its own position. May be longer than a shard.
        device_mesh: `keras.distribution.DeviceMesh` with the axis `sequence_axis`.
        sequence_axis: name of the mesh axis over which the sequence is sharded. Default "sequence".
        batch_axis: name of the mesh axis over which the batch is sharded. Default None: it is not sharded.
        causal: whether later positions are masked. Default False.
        padding_mask: bool (B, T), False for padding. Default None: no padding.

    Returns:
        (B, T, N, Hv), sharded like the inputs. Zeros for padding and for queries without an unmasked key.

    Raises:
        ValueError: if the backend is not JAX, the mesh does not have an axis, or its devices do not divide T or B.

    Example:

        mesh = keras.distribution.DeviceMesh((8,), ("sequence",))
        output = tsa.distribution.sharded_window_attention(query, key, value, 256, mesh, causal=True)
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`keras.backend.backend()` must be 'jax' for `sharded_window_attention`: set KERAS_BACKEND=jax. "
            f"Received: {keras.backend.backend()}."
        )
    import jax

    checks.check_count("window", window)
    num_devices = _devices_along(device_mesh, "sequence_axis", sequence_axis, query.shape[1], "positions")
    if batch_axis is not None:
        _devices_along(device_mesh, "batch_axis", batch_axis, query.shape[0], "rows")
    rows = jax.sharding.PartitionSpec(batch_axis, sequence_axis)
    inputs = [query, key, value, ops.ones(query.shape[:2], "bool") if padding_mask is None else padding_mask]
    attend_shard = functools.partial(
        _attend_shard, window=window, causal=causal, axis=sequence_axis, num_devices=num_devices
    )
    mesh = device_mesh.backend_mesh
    return jax.shard_map(attend_shard, mesh=mesh, in_specs=(rows,) * 4, out_specs=rows)(*inputs)


def _devices_along(device_mesh, argument, axis, size, unit):
    """Return the number of devices along a mesh axis, which must divide a size of the query."""
    if axis not in device_mesh.axis_names:
        raise ValueError(
            f"`{argument}` must be an axis of the mesh. "
            f"Received: {argument}={axis!r}, a mesh with the axes {', '.join(device_mesh.axis_names)}."
        )
    number = device_mesh.shape[device_mesh.axis_names.index(axis)]
    if size % number:
        raise ValueError(
            f"`query` must have a number of {unit} that the devices divide; add padding and a `padding_mask`. "
            f"Received: {size} {unit}, {number} devices."
        )
    return number


def _attend_shard(query, key, value, mask, window, causal, axis, num_devices):
    """Compute the attention outputs of one shard, (B, t, N, Hv)."""
    halo = min(window - 1, (num_devices - 1) * query.shape[1])  # positions before the first shard do not exist
    keys, values, exists = (_with_halo(x, halo, 0 if causal else halo, axis, num_devices) for x in (key, value, mask))
    query, keys, values = (ops.swapaxes(x, 1, 2) for x in (query, keys, values))  # (B, N, t, H)
    masks = TokenMasks(key_mask=exists, num_memory=halo)
    scaled = query * query.shape[-1] ** -0.5
    with use_kernel(None):  # kernels divide the batch over devices, and this function runs on one device
        output = attend_pattern(Window(window), scaled, keys, values, causal, masks).output
    return ops.where(mask[..., None, None], ops.swapaxes(output, 1, 2), 0)


def _with_halo(x, before, after, axis, num_devices):
    """Add the positions before and after a shard (B, t, ...), zeros (False) outside of the sequence."""
    return ops.concatenate([*_halo(x, before, 1, axis, num_devices), x, *_halo(x, after, -1, axis, num_devices)], 1)


def _halo(x, size, step, axis, num_devices):
    """Return the `size` adjacent positions from the devices before (`step` 1) or after (-1), in sequence order."""
    import jax

    parts, length = [], x.shape[1]
    for hop in range(1, num_devices):
        count = min(length, size - length * (hop - 1))
        if count > 0:
            edge = x[:, length - count :] if step > 0 else x[:, :count]
            pairs = [(i, i + step * hop) for i in range(num_devices) if 0 <= i + step * hop < num_devices]
            parts.append(jax.lax.ppermute(edge, axis, pairs))
    return parts[::-step]
