"""The best span of a text, given scores of where it begins and where it ends."""

from keras import ops

from tf_sparse_attention.ops.blocks import max_over, shape
from tf_sparse_attention.types import Tensor

LOWEST = -1e30  # of float32: a score of what cannot be chosen, with room for the sum of two


def best_spans(
    start_scores: Tensor, end_scores: Tensor, max_length: int, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns start, end and score of the best span of each row, of at most `max_length` positions, in O(T L).

    The score of a span is that of its start plus that of its end, and start <= end < start + L. Of equal ones the first
    is chosen, and of those that start there the shortest.

    Args:
        start_scores: float32 (B, T).
        end_scores: float32 (B, T).
        max_length: L.
        allowed: bool (B, T), False for positions that no span may hold; where all are the result says nothing. None:
            none is.

    Returns:
        Triple of start and end, int32 (B,), both inside of the span, and its score, float32 (B,).

    Example:
        >>> start, end, score = best_spans(ops.array([[0.0, 5.0, 1.0]]), ops.array([[9.0, 0.0, 2.0]]), max_length=2)
        >>> int(start[0]), int(end[0]), float(score[0])
        (0, 0, 9.0)
    """
    rows, length = shape(start_scores)
    padded = ops.pad(end_scores, [(0, 0), (0, max_length - 1)], constant_values=LOWEST)
    places = ops.arange(length)[:, None] + ops.arange(max_length)[None]
    sums = start_scores[..., None] + ops.take(padded, places, axis=1)  # (B, T, L)
    if allowed is not None:
        before = ops.cumsum(ops.cast(ops.logical_not(allowed), "int32"), axis=1)  # up to each, itself included
        before = ops.pad(before, [(0, 0), (0, max_length - 1)], constant_values=-1)
        is_whole = ops.logical_and(allowed[..., None], ops.take(before, places, axis=1) == before[:, :length, None])
        sums = ops.where(is_whole, sums, 4 * LOWEST)
    sums = ops.reshape(sums, (rows, length * max_length))
    best = ops.cast(ops.argmax(sums, axis=-1), "int32")
    start = best // max_length
    return start, start + best % max_length, max_over(sums, axis=-1)
