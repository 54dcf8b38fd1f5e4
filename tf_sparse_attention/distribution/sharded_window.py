"""Windows over a sequence that is divided among devices: each takes the edges of its neighbours."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.kernels.choice import use_kernel
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns.engine.attending import attend_pattern
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
    """Compute attention to the positions less than `window` away, of a sequence that is divided among P devices.

    out_i = sum_j p_ij v_j with p_i = softmax(q_i . k_j / sqrt(H)) over |i - j| < window, causal over 0 <= i - j <
    window, as `LocalAttention` without positions computes it of the whole sequence. Each device holds T / P positions
    and computes their outputs in O(T / P window) time. For them it needs the keys and values of up to window - 1
    positions before its own, and without `causal` as many after: for each row of the batch (window - 1) N (H + Hv)
    numbers a side, whatever T is, by `jax.lax.ppermute` from the device beside it, or from as many as the window
    reaches.

    Works inside `jax.jit` and `jax.grad` and outside of them; the gradients of keys and values go back the same way.

    Args:
        query: (B, T, N, H).
        key: (B, T, N, H).
        value: (B, T, N, Hv).
        window: positions a query sees on a side, counting itself; it may be longer than the part of a device.
        device_mesh: `keras.distribution.DeviceMesh` with an axis over which sequences are divided.
        sequence_axis: name of that axis. Default "sequence".
        batch_axis: name of the axis of the mesh over which the batch is divided. Default None: it is not.
        causal: whether later positions are hidden. Default False.
        padding_mask: bool (B, T), True where there is a token. Default None: everywhere.

    Returns:
        (B, T, N, Hv), divided as the inputs are: zeros where a query is padding or has nothing to attend to.

    Raises:
        ValueError: If the backend is not JAX, the mesh lacks an axis, or its devices do not divide T or B.

    Example:

        mesh = keras.distribution.DeviceMesh((8,), ("sequence",))
        output = tsa.distribution.sharded_window_attention(query, key, value, 256, mesh, causal=True)
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            "`sharded_window_attention` needs the JAX backend: set the variable KERAS_BACKEND=jax. "
            f"Received: {keras.backend.backend()}."
        )
    import jax

    checks.check_count("window", window)
    num_devices = _devices_along(device_mesh, "sequence_axis", sequence_axis, query.shape[1], "positions")
    if batch_axis is not None:
        _devices_along(device_mesh, "batch_axis", batch_axis, query.shape[0], "rows")
    rows = jax.sharding.PartitionSpec(batch_axis, sequence_axis)
    inputs = [query, key, value, ops.ones(query.shape[:2], "bool") if padding_mask is None else padding_mask]

    def of_part(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return _attend_part(query, key, value, mask, window, causal, sequence_axis, num_devices)

    mesh = device_mesh.backend_mesh
    return jax.shard_map(of_part, mesh=mesh, in_specs=(rows,) * 4, out_specs=rows)(*inputs)


def _devices_along(device_mesh, argument, axis, size, what):
    """Return the devices along an axis of the mesh, which must divide a size of the query."""
    if axis not in device_mesh.axis_names:
        raise ValueError(
            f"`{argument}` must be an axis of the mesh. "
            f"Received: {argument}={axis!r}, a mesh with the axes {', '.join(device_mesh.axis_names)}."
        )
    number = device_mesh.shape[device_mesh.axis_names.index(axis)]
    if size % number:
        raise ValueError(
            f"`query` must have {what} that the devices divide; pad them, with a `padding_mask`. "
            f"Received: {size} {what}, {number} devices."
        )
    return number


def _attend_part(query, key, value, mask, window, causal, axis, num_devices):
    """Return what the positions of one device attend to, (B, t, N, Hv)."""
    halo = min(window - 1, (num_devices - 1) * query.shape[1])  # no key is further away
    keys, values, seen = (_with_edges(x, halo, 0 if causal else halo, axis, num_devices) for x in (key, value, mask))
    query, keys, values = (ops.swapaxes(x, 1, 2) for x in (query, keys, values))  # (B, N, t, H)
    masks = TokenMasks(key_mask=seen, num_memory=halo)
    scaled = query * query.shape[-1] ** -0.5
    with use_kernel(None):  # kernels divide the batch among devices themselves, which this is already inside of
        output = attend_pattern(Window(window), scaled, keys, values, causal, masks).output
    return ops.where(mask[..., None, None], ops.swapaxes(output, 1, 2), 0)


def _with_edges(x, before, after, axis, num_devices):
    """Return positions (B, t, ...) with those before and after them, zeros (False) outside of the sequence."""
    return ops.concatenate([*_edges(x, before, 1, axis, num_devices), x, *_edges(x, after, -1, axis, num_devices)], 1)


def _edges(x, size, step, axis, num_devices):
    """Return the `size` positions beside the own ones, from the devices before (`step` 1) or after (-1), in order."""
    import jax

    parts, length = [], x.shape[1]
    for hop in range(1, num_devices):
        count = min(length, size - length * (hop - 1))
        if count > 0:
            edge = x[:, length - count :] if step > 0 else x[:, :count]
            pairs = [(i, i + step * hop) for i in range(num_devices) if 0 <= i + step * hop < num_devices]
            parts.append(jax.lax.ppermute(edge, axis, pairs))
    return parts[::-step]
