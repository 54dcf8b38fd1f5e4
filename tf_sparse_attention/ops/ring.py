"""Slots that keep what comes last: which positions they hold, and writing one of them."""

from keras import ops

from tf_sparse_attention.ops.blocks import are_known, in_range, shape
from tf_sparse_attention.ops.gather import take_rows
from tf_sparse_attention.types import Size, Tensor


def at_most(size: Size, limit: Size) -> Size:
    """Returns a number of slots, or the limit where that is known to be less."""
    return min(size, limit) if are_known(size, limit) else size


def ring_positions(size: Size, index: Tensor) -> Tensor:
    """Returns the positions that the slots of a ring hold once position `index` is written, negative where none is.

    Position p is kept in slot p mod `size`, so a slot holds the last position that ended there.

    Args:
        size: R, slots of a ring.
        index: int32 (...), the last position that was written, -1 for none.

    Returns:
        int32 (..., R).
    """
    # Made positive first: runtimes of other formats differ in the remainders of negative numbers.
    ahead = size - ops.arange(size, dtype="int32")
    return index[..., None] - (index[..., None] + ahead) % size


def take_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Returns the rows of tokens (B, M, T, H) at positions (B, N or 1, S), anything where they are outside.

    N is M, or a multiple of it where heads in groups share the tokens.
    """
    batch, heads, length, _ = shape(x)
    heads = heads if positions.shape[1] == 1 else positions.shape[1]
    positions = ops.broadcast_to(positions, (batch, heads, shape(positions)[-1]))
    return take_rows(x, in_range(positions, length))


def write_slot(slots: Tensor, x: Tensor, at: Tensor, kept: Tensor | None = None) -> Tensor:
    """Returns slots with one of each row and head overwritten.

    Args:
        slots: tensor (B, N, S) or (B, N, S, H).
        x: tensor (B or 1, N or 1) or (B, N, 1, H).
        at: int32 (B, N or 1), which slot.
        kept: bool (B, N or 1), False where the slot stays as it was; or None.
    """
    batch, heads, size, *rest = shape(slots)
    at = ops.reshape(ops.broadcast_to(at, (batch, heads)), (-1,))
    rows = ops.reshape(slots, (batch * heads * size, *rest))
    x = ops.broadcast_to(ops.reshape(x, (*shape(x)[:2], *rest)), (batch, heads, *rest))
    x = ops.cast(ops.reshape(x, (batch * heads, *rest)), rows.dtype)
    index = ops.arange(batch * heads, dtype="int32") * size + at
    if kept is not None:
        kept = ops.reshape(ops.broadcast_to(kept, (batch, heads)), (-1, *[1] * len(rest)))
        x = ops.where(kept, x, ops.take(rows, index, axis=0))
    rows = ops.scatter_update(rows, index[:, None], x)
    return ops.reshape(rows, (batch, heads, size, *rest))
