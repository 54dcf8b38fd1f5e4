"""Gathers of rows. If each row is taken once, the gradient is a gather too, much faster than a scatter."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.shapes import in_range, shape
from tf_sparse_attention.types import Tensor


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows: `x[b, m, index[b, n, i], :]` with m = n // (N / M).

    One `ops.take` on flattened leading axes.

    Args:
        x: tensor (B, M, S, H).
        index: int32 (B, N, I), in range. N is a multiple of M: groups of N / M heads share rows.

    Returns:
        Tensor (B, N, I, H).
    """
    batch, heads, length, size = shape(x)
    return _take(ops.reshape(x, (batch * heads * length, size)), _flat(index, batch, heads, length))


def _flat(index, batch, heads, length):
    """Convert row indices per head to row indices in the flattened (B M S) rows."""
    num_heads = index.shape[1]
    if num_heads in (None, heads) or not isinstance(heads, int):
        return index + ops.reshape(ops.arange(batch * heads, dtype="int32") * length, (batch, heads, 1))
    shared = np.arange(num_heads, dtype="int32") // (num_heads // heads)
    rows = ops.arange(batch, dtype="int32")[:, None] * heads + shared
    return index + rows[..., None] * length


def _take(x, index):
    """Return `x[index]`, for indices in range."""
    if keras.backend.backend() == "jax":  # `take` would check the range in a second pass over the result
        return x[index]
    return ops.take(x, index, axis=0)


def take_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Gather the rows of tokens (B, M, T, H) at positions (B, N or 1, S).

    N is a multiple of M: groups of N / M heads share tokens. Positions out of range give arbitrary rows.
    """
    batch, heads, length, _ = shape(x)
    heads = heads if positions.shape[1] == 1 else positions.shape[1]
    positions = ops.broadcast_to(positions, (batch, heads, shape(positions)[-1]))
    return take_rows(x, in_range(positions, length))


def take_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Gather blocks that may repeat: `x[b, m, index[b, n, i]]`, (B, M, G, ..) to (B, N, I, ..), see `take_rows`."""
    batch, heads, number, *sizes = shape(x)
    rows = _take_repeatedly(ops.reshape(x, (batch * heads * number, -1)), _flat(index, batch, heads, number))
    return ops.reshape(rows, (*shape(index), *sizes))


def upstream_gradient(args: tuple[Any, ...], upstream: Any) -> Any:
    """Return the upstream gradient of one result from `grad(*args, upstream=None)`; backends differ in which is set."""
    return args[0] if upstream is None else upstream


@ops.custom_gradient
def _take_repeatedly(x, index):
    def grad(*args, upstream=None):
        number, size = shape(x)
        rows = ops.reshape(upstream_gradient(args, upstream), (-1, size))
        # For long rows this takes 3/4 of the time of TensorFlow's gradient, a segment sum.
        return ops.scatter(ops.reshape(index, (-1, 1)), rows, (number, size)), None

    return _take(x, index), grad


def take_members(x: Tensor, positions: Tensor) -> Tensor:
    """Gather rows (B, N, S, H) of group members at positions (B, N, K, w): (B, N, K, w, H)."""
    batch, heads, groups, size = shape(positions)
    rows = take_rows(x, ops.reshape(positions, (batch, heads, -1)))
    return ops.reshape(rows, (batch, heads, groups, size, -1))


def take_numbers(x: Tensor, index: Tensor) -> Tensor:
    """Gather numbers (B, M, S) as `take_rows` does, without a gradient: for masks, groups and positions."""
    dtype = x.dtype
    x = ops.cast(x, "int32") if keras.backend.standardize_dtype(dtype) == "bool" else x
    batch, heads, length = shape(x)
    rows = _flat(index, batch, heads, length)
    return ops.cast(_take(ops.reshape(x, (batch * heads * length,)), rows), dtype)


def take_member_numbers(x: Tensor, positions: Tensor) -> Tensor:
    """Gather numbers (B, N, S) of group members at positions (B, N, K, w): (B, N, K, w), without a gradient."""
    batch, heads, groups, size = shape(positions)
    return ops.reshape(take_numbers(x, ops.reshape(positions, (batch, heads, -1))), (batch, heads, groups, size))


@ops.custom_gradient
def _permute(x, order, inverse):
    def grad(*args, upstream=None):
        return take_rows(upstream_gradient(args, upstream), inverse), None, None

    return take_rows(x, order), grad


def permute_rows(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Permute rows: `x[b, n, order[b, n, i], :]`. The gradient is a gather by the inverse permutation.

    Args:
        x: tensor (B, N, T, H).
        order: int32 (B, N, T), a permutation of 0 .. T - 1 for each (b, n).
        inverse: int32 (B, N, T), the inverse permutation.

    Returns:
        Tensor (B, N, T, H).
    """
    return _permute(x, order, inverse)


@ops.custom_gradient
def _pick(x, index, back, present):
    def grad(*args, upstream=None):
        return ops.where(present[..., None], take_rows(upstream_gradient(args, upstream), back), 0), None, None, None

    return take_rows(x, index), grad


def take_unique_rows(x: Tensor, index: Tensor, back: Tensor, present: Tensor | None = None) -> Tensor:
    """Gather rows that are used once: `x[b, n, index[b, n, i], :]`. The gradient is a gather instead of a scatter.

    Args:
        x: tensor (B, N, S, H).
        index: int32 (B, N, I).
        back: int32 (B, N, S), the index in the result of each row of `x`, from which it takes its gradient. Do not use
            further copies of a row: their gradient is dropped.
        present: bool (B, N, S), whether the row of `x` is in the result. None: all are.

    Returns:
        Tensor (B, N, I, H).
    """
    return _permute(x, index, back) if present is None else _pick(x, index, back, present)


def stable_order(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the permutation that sorts tokens by (group, position), and its inverse.

    Args:
        groups: int32 (B, N, T).

    Returns:
        Pair of int32 (B, N, T): the position at each rank, and the rank of each position.
    """
    # Both backends sort stably, so position is the second key.
    order = ops.cast(ops.argsort(groups, axis=-1), "int32")
    return order, ops.cast(ops.argsort(order, axis=-1), "int32")
