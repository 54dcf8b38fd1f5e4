"""Row gathers; of rows taken once the gradients are gathers too, far faster on CPUs and TPUs than scatters."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.types import Tensor


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Returns `x[b, m, index[b, n, i], :]`, m = n // (N / M): one `ops.take` of rows on the flattened leading axes.

    Args:
        x: tensor (B, M, S, H).
        index: int32 (B, N, I), in range; N is M, or a multiple of it where heads in groups share rows.

    Returns:
        Tensor (B, N, I, H).
    """
    batch, heads, length, size = shape(x)
    return _take(ops.reshape(x, (batch * heads * length, size)), _flat(index, batch, heads, length))


def _flat(index, batch, heads, length):
    """Returns an index of rows for each head as one of the rows of all (B, M) heads."""
    num_heads = index.shape[1]
    if num_heads in (None, heads) or not isinstance(heads, int):
        return index + ops.reshape(ops.arange(batch * heads, dtype="int32") * length, (batch, heads, 1))
    shared = np.arange(num_heads, dtype="int32") // (num_heads // heads)
    rows = ops.arange(batch, dtype="int32")[:, None] * heads + shared
    return index + rows[..., None] * length


def _take(x, index):
    """Returns `x[index]`, of an index in range."""
    if keras.backend.backend() == "jax":  # whose `take` looks for those that are not, and goes over the result again
        return x[index]
    return ops.take(x, index, axis=0)


def take_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Returns `x[b, m, index[b, n, i]]` of blocks (B, M, G, ..) taken often: (B, N, I, ..), see `take_rows`."""
    batch, heads, number, *sizes = shape(x)
    rows = _take_repeatedly(ops.reshape(x, (batch * heads * number, -1)), _flat(index, batch, heads, number))
    return ops.reshape(rows, (*shape(index), *sizes))


@ops.custom_gradient
def _take_repeatedly(x, index):
    def grad(*args, upstream=None):
        number, size = shape(x)
        rows = ops.reshape(upstream_gradient(args, upstream), (-1, size))
        # Of long rows 3/4 of the time of TensorFlow's own gradient, a segment sum.
        return ops.scatter(ops.reshape(index, (-1, 1)), rows, (number, size)), None

    return _take(x, index), grad


def take_members(x: Tensor, positions: Tensor) -> Tensor:
    """Returns rows (B, N, S, H) at positions (B, N, K, w): (B, N, K, w, H)."""
    batch, heads, groups, size = shape(positions)
    rows = take_rows(x, ops.reshape(positions, (batch, heads, -1)))
    return ops.reshape(rows, (batch, heads, groups, size, -1))


def take_numbers(x: Tensor, index: Tensor) -> Tensor:
    """Returns `take_rows` of numbers (B, M, S), without a gradient: for masks, groups and positions."""
    dtype = x.dtype
    x = ops.cast(x, "int32") if keras.backend.standardize_dtype(dtype) == "bool" else x
    batch, heads, length = shape(x)
    rows = _flat(index, batch, heads, length)
    return ops.cast(_take(ops.reshape(x, (batch * heads * length,)), rows), dtype)


def take_member_numbers(x: Tensor, positions: Tensor) -> Tensor:
    """Returns numbers (B, N, S) at positions (B, N, K, w): (B, N, K, w), without a gradient."""
    batch, heads, groups, size = shape(positions)
    return ops.reshape(take_numbers(x, ops.reshape(positions, (batch, heads, -1))), (batch, heads, groups, size))


@ops.custom_gradient
def _permute(x, order, inverse):
    def grad(*args, upstream=None):
        return take_rows(upstream_gradient(args, upstream), inverse), None, None

    return take_rows(x, order), grad


def permute_rows(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Returns `x[b, n, order[b, n, i], :]` for a permutation; its gradient is the gather by the inverse.

    Args:
        x: tensor (B, N, T, H).
        order: int32 (B, N, T), a permutation of 0 .. T - 1 in each (b, n).
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
    """Returns `x[b, n, index[b, n, i], :]` where each row is wanted once; its gradient is a gather and not a scatter.

    Args:
        x: tensor (B, N, S, H).
        index: int32 (B, N, I).
        back: int32 (B, N, S), the one place in the result from which a row of `x` takes its gradient. Further places
            that hold the same row must not be used: their gradient is dropped.
        present: bool (B, N, S), whether a row of `x` has such a place. None: all have.

    Returns:
        Tensor (B, N, I, H).
    """
    return _permute(x, index, back) if present is None else _pick(x, index, back, present)


def stable_order(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the permutation that sorts by (group, position), and its inverse.

    Args:
        groups: int32 (B, N, T).

    Returns:
        Pair of int32 (B, N, T): the position at each rank, and the rank of each position.
    """
    # Both backends keep the order of equal elements, which makes position the second key.
    order = ops.cast(ops.argsort(groups, axis=-1), "int32")
    return order, ops.cast(ops.argsort(order, axis=-1), "int32")


def take_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Returns the rows of tokens (B, M, T, H) at positions (B, N or 1, S), anything where they are outside.

    N is M, or a multiple of it where heads in groups share the tokens.
    """
    batch, heads, length, _ = shape(x)
    heads = heads if positions.shape[1] == 1 else positions.shape[1]
    positions = ops.broadcast_to(positions, (batch, heads, shape(positions)[-1]))
    return take_rows(x, in_range(positions, length))


def upstream_gradient(args: tuple[Any, ...], upstream: Any) -> Any:
    """Returns the gradient of the one result, from the arguments of `grad(*args, upstream=None)`."""
    return args[0] if upstream is None else upstream
