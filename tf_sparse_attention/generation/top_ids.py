"""The best ids of each row without sorting the vocabulary, for the cuts of `samplers`."""

from keras import ops

from tf_sparse_attention.types import Tensor

HIGHEST = 2**31 - 1


def top_ids(logits: Tensor, amounts: Tensor, limit: Tensor) -> Tensor:
    """Return the ids for which the amounts of all better ids add up to no more than `limit`.

    Of equal logits the lower ids are better. The lowest logit that is reached is found bit by bit, in 32 passes over
    the row: a tenth of the time of a sort of it, or less.

    Args:
        logits: float32 (B, V).
        amounts: int or float (B, V), not negative, equal for equal logits.
        limit: (B or 1, 1), at least 0, of the dtype of the amounts.

    Returns:
        Bool (B, V).
    """
    order = _in_order(logits)

    def above(order_of_least):
        return ops.sum(ops.where(order > order_of_least, amounts, ops.zeros_like(amounts)), axis=-1, keepdims=True)

    def lower(bit, least):
        # Takes 2**31, 2**30, .. 1 off; all of them, and their negatives alone, are int32.
        lowered = least + ops.right_shift(ops.convert_to_tensor(-(2**31), "int32"), bit)
        return ops.where(above(lowered) <= limit, lowered, least)

    least = ops.full((ops.shape(logits)[0], 1), HIGHEST, dtype="int32")
    least = ops.fori_loop(0, 32, lower, least)
    equals = order == least
    before = ops.cumsum(ops.cast(equals, amounts.dtype), axis=-1) - 1
    return (order > least) | (equals & (above(least) + before * amounts <= limit))


def _in_order(logits):
    """Return int32 (B, V) in the order of the logits, equal where they are: bits of floats, those below 0 turned."""
    bits = ops.view(ops.where(logits == 0, 0.0, logits), "int32")  # -0 has other bits
    return ops.where(bits >= 0, bits, ops.bitwise_xor(bits, ops.convert_to_tensor(HIGHEST, "int32")))
