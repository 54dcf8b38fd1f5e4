"""Ring buffers of the last tokens: positions of the slots, and writing to a slot."""

from keras import ops

from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Size, Tensor


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


def write_slot(slots: Tensor, x: Tensor, at: Tensor, kept: Tensor | None = None) -> Tensor:
    """Overwrite one slot per row and head.

    Args:
        slots: tensor (B, N, S) or (B, N, S, H).
        x: tensor (B or 1, N or 1) or (B, N, 1, H).
        at: int32 (B, N or 1), the slot to write.
        kept: bool (B, N or 1), False to leave the slot unchanged. None: write all.
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
