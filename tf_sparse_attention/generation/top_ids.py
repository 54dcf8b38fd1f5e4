"""Selection of the highest logits of each row without sorting the vocabulary, for top-k and nucleus sampling."""

from keras import ops

from tf_sparse_attention.types import Tensor

HIGHEST = 2**31 - 1


def top_ids(logits: Tensor, amounts: Tensor, limit: Tensor) -> Tensor:
    """Return a mask of the ids for which the amounts of all higher-ranked ids sum to at most `limit`.

    Ids are ranked by logit; ties go to lower ids. A bitwise search in 32 passes over the row finds the lowest selected
    logit, in at most a tenth of the time of a sort.

    Args:
        logits: float32 (B, V).
        amounts: int or float (B, V), not negative, equal for equal logits.
        limit: (B, 1) or (1, 1), at least 0, with the dtype of `amounts`.

    Returns:
        Bool (B, V).
    """
    order = _in_order(logits)

    def above(order_of_least):
        return ops.sum(ops.where(order > order_of_least, amounts, ops.zeros_like(amounts)), axis=-1, keepdims=True)

    def lower(bit, least):
        # Subtracts 2**31, 2**30, ..., 1, written as sums with negative numbers: 2**31 itself exceeds int32.
        lowered = least + ops.right_shift(ops.convert_to_tensor(-(2**31), "int32"), bit)
        return ops.where(above(lowered) <= limit, lowered, least)

    least = ops.full((ops.shape(logits)[0], 1), HIGHEST, dtype="int32")
    least = ops.fori_loop(0, 32, lower, least)
    equals = order == least
    before = ops.cumsum(ops.cast(equals, amounts.dtype), axis=-1) - 1
    return (order > least) | (equals & (above(least) + before * amounts <= limit))


def _in_order(logits):
    """Return int32 (B, V) in the order of the logits: float bits, inverted except for the sign if negative."""
    bits = ops.view(ops.where(logits == 0, 0.0, logits), "int32")  # -0 and 0 have different bits
    return ops.where(bits >= 0, bits, ops.bitwise_xor(bits, ops.convert_to_tensor(HIGHEST, "int32")))
