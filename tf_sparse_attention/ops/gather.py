"""Gathers of rows, and sorting of tokens by group.

If each row is gathered once, the gradient is a gather too, which is much faster than a scatter.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.shapes import in_range, max_over, shape
from tf_sparse_attention.types import Size, Tensor

NO_GROUP = np.iinfo("int32").max  # the group of masked tokens; it sorts last


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


def take_slots(x: Tensor, at: Tensor) -> Tensor:
    """Gather the slots that each query reads: rows (B, M, S, H) or numbers (B, M, S) at slots (B, N or 1, q, s).

    N is a multiple of M: groups of N / M heads share slots. Slots out of range give arbitrary rows.

    Returns:
        Tensor (B, N or M, q, s, H) or (B, N or M, q, s).
    """
    batch, heads, length, *_ = shape(x)
    heads = heads if at.shape[1] == 1 else at.shape[1]
    num_queries, size = shape(at)[2:]
    index = ops.broadcast_to(ops.reshape(at, (shape(at)[0], at.shape[1], -1)), (batch, heads, num_queries * size))
    take = take_numbers if len(x.shape) == 3 else take_rows
    rows = take(x, in_range(index, length))
    return ops.reshape(rows, (batch, heads, num_queries, size, *shape(x)[3:]))


def take_blocks(x: Tensor, index: Tensor) -> Tensor:
    """Gather blocks that may repeat: `x[b, m, index[b, n, i]]`, (B, M, G, ..) to (B, N, I, ..), see `take_rows`."""
    batch, heads, number, *sizes = shape(x)
    rows = _take_repeatedly(ops.reshape(x, (batch * heads * number, -1)), _flat(index, batch, heads, number))
    return ops.reshape(rows, (*shape(index), *sizes))


def upstream_gradient(args: tuple[Any, ...], upstream: Any) -> Any:
    """Return the upstream gradient of one result. Backends pass it in `args` or by name to a custom gradient."""
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
        order, inverse: int32 (B, N, T), a permutation of 0 .. T - 1 per row and head, and its inverse.
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
        back: int32 (B, N, S), the index of each row of `x` in the result, where it takes its gradient from. If `index`
            contains a row of `x` several times, only the copy at `back` passes its gradient to `x`. Do not use the
            remaining copies.
        present: bool (B, N, S), whether the row of `x` is in the result. None: all are.

    Returns:
        Tensor (B, N, I, H).
    """
    return _permute(x, index, back) if present is None else _pick(x, index, back, present)


def stable_order(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the permutation that sorts tokens by group, then position, and its inverse, int32 (B, N, T) each."""
    # Both backends sort stably, so position is the second key.
    order = ops.cast(ops.argsort(groups, axis=-1), "int32")
    return order, ops.cast(ops.argsort(order, axis=-1), "int32")


def segment_ranks(*segments: Tensor) -> list[Tensor]:
    """Replace the document ids of each row by their ranks 0, 1, .. among the distinct ids of the row.

    Args:
        *segments: int tensors (B, T_i) with common ids, for example of queries and of keys.

    Returns:
        List of int32 tensors (B, T_i), less than the sum of all T_i.
    """
    ids = segments[0] if len(segments) == 1 else ops.concatenate(segments, axis=-1)
    order = ops.argsort(ids, axis=-1)
    sorted_ids = ops.take_along_axis(ids, order, axis=-1)
    new = ops.cast(sorted_ids[:, 1:] != sorted_ids[:, :-1], "int32")
    ranks = ops.cumsum(ops.pad(new, [(0, 0), (1, 0)]), axis=-1)
    ranks = ops.take_along_axis(ranks, ops.argsort(order, axis=-1), axis=-1)
    parts, start = [], 0
    for part in segments:
        stop = start + shape(part)[-1]
        parts.append(ranks[:, start:stop])
        start = stop
    return parts


def token_groups(
    clusters: Tensor, num_clusters: int, token_mask: Tensor | None = None, segment_rank: Tensor | None = None
) -> Tensor:
    """Return the group of each token, one group per pair of document and cluster: int32 (B, N, T), at least 1.

    Args:
        clusters: int32 (B or 1, N, T).
        num_clusters: K.
        token_mask: bool (B, T), False for tokens in the group `NO_GROUP`; or None.
        segment_rank: int32 (B, T), see `segment_ranks`; None without packed documents.
    """
    groups = clusters + 1
    if segment_rank is not None:
        groups = groups + segment_rank[:, None, :] * num_clusters
    return groups if token_mask is None else ops.where(token_mask[:, None, :], groups, NO_GROUP)


def mark_missing_keys(groups: Tensor) -> Tensor:
    """Set the group of masked keys to 0, so that no query attends to them. Queries have groups >= 1."""
    return ops.where(groups == NO_GROUP, 0, groups)


def ring_positions(size: Size, index: Tensor) -> Tensor:
    """Return the position in each slot of a ring buffer after position `index` is written; negative if empty.

    Position p is in slot p mod `size`, so a slot holds the last position written to it.

    Args:
        size: R, number of slots.
        index: int32 (...), the last written position, -1 for none.

    Returns:
        int32 (..., R).
    """
    # Positive operands: runtimes of exported models differ in the remainder of negative numbers.
    ahead = size - ops.arange(size, dtype="int32")
    return index[..., None] - (index[..., None] + ahead) % size


def rewrite_slots(slots: Tensor, x: Tensor, at: Tensor, is_new: Tensor) -> Tensor:
    """Replace slots (B, N, S) or (B, N, S, H) with tokens of `x`, (B, N, q) or (B, N, q, H), where `is_new`.

    Unlike `write_slots`, it rewrites all slots.

    Args:
        slots: tensor (B, N, S) or (B, N, S, H).
        x: the tokens.
        at: int32 (B, 1 or N, S), the token for each slot.
        is_new: bool, shape of `at`.
    """
    if len(slots.shape) == 4:
        return ops.where(is_new[..., None], ops.cast(take_positions(x, at), slots.dtype), slots)
    return ops.where(is_new, take_positions(x[..., None], at)[..., 0], slots)


def write_slots(slots: Tensor, x: Tensor, at: Tensor, kept: Tensor) -> Tensor:
    """Overwrite a slot per row, head and new token.

    Tokens of one row and head that are kept must have different slots.

    Args:
        slots: tensor (B, N, S) or (B, N, S, H).
        x: tensor (B or 1, N or 1, q), or (B, N, q, H).
        at: int32 (B, N or 1, q), the slot of each token.
        kept: bool (B, N or 1, q), False for tokens that are not written.
    """
    batch, heads, size, *rest = shape(slots)
    num_tokens = shape(at)[2]
    sizes = batch, heads, num_tokens
    at, kept = in_range(ops.broadcast_to(at, sizes), size), ops.broadcast_to(kept, sizes)
    x = ops.cast(ops.broadcast_to(x, (*sizes, *rest)), slots.dtype)
    if num_tokens != 1:  # tokens that are not kept repeat the first kept token: duplicate writes are equal
        number = ops.arange(num_tokens, dtype="int32")
        # q minus the number of the first kept token
        first = max_over(ops.where(kept, num_tokens - number, 0), axis=-1, keepdims=True)
        source = ops.where(kept, number, in_range(num_tokens - first, num_tokens))
        at, kept = take_numbers(at, source), ops.broadcast_to(first > 0, sizes)
        x = take_rows(x, source) if rest else take_numbers(x, source)
    index = ops.reshape(at, (-1,))
    first_slot = ops.arange(batch * heads, dtype="int32") * size
    index = index + (first_slot if num_tokens == 1 else ops.repeat(first_slot, num_tokens))
    rows = ops.reshape(slots, (batch * heads * size, *rest))
    x, kept = ops.reshape(x, (-1, *rest)), ops.reshape(kept, (-1, *[1] * len(rest)))
    x = ops.where(kept, x, ops.take(rows, index, axis=0))
    return ops.reshape(ops.scatter_update(rows, index[:, None], x), (batch, heads, size, *rest))
