"""Slots that keep what comes last: which positions they hold, and writing one of them."""

from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Size, Tensor


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
