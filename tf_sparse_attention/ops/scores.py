"""Scatters the attention weights of blocks into a dense matrix."""

from keras import ops

from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.types import Size, Tensor


def dense_scores(weights: Tensor, key_positions: Tensor, key_length: Size) -> Tensor:
    """Scatters the weights of key slots to the columns of their positions; O(T S) memory, by its nature.

    Args:
        weights: tensor (..., t, s).
        key_positions: int, broadcastable to (..., t, s). Positions outside the sequence must have weight 0.
        key_length: S, columns of the result.

    Returns:
        Tensor (..., t, S); weights of slots with the same position are added.
    """
    sizes = shape(weights)
    columns = ops.broadcast_to(in_range(key_positions, key_length), sizes)
    flat = ops.reshape(weights, (-1, sizes[-1]))  # one row a query
    rows = ops.arange(shape(flat)[0], dtype="int32")[:, None]
    index = rows * key_length + ops.reshape(columns, (-1, sizes[-1]))
    total = shape(flat)[0] * key_length
    dense = ops.segment_sum(ops.reshape(flat, (-1,)), ops.reshape(index, (-1,)), num_segments=total)
    return ops.reshape(dense, sizes[:-1] + (key_length,))
