"""Splits texts of any length into windows, for `score` and `embed`."""

from collections.abc import Callable

import tensorflow as tf

from tf_sparse_attention.types import Tensor


def sum_over_windows(
    ids: tf.RaggedTensor,
    num_texts: Tensor,
    sequence_length: int,
    batch_size: int,
    compute: Callable[[Tensor, Tensor], Tensor],
    size: tuple[int, ...] = (),
) -> Tensor:
    """Returns, for each text, the sum of what is computed for its windows.

    Args:
        ids: ragged int32 (B, None), tokens of the texts.
        num_texts: B, a scalar tensor.
        sequence_length: maximal number of tokens in a window.
        batch_size: maximal number of windows computed at once.
        compute: function (tokens, is_real) -> float64 (S, *size), of int32 (S, W) tokens and bool (S, W).
        size: shape of the result for one window. Default: `()`.

    Returns:
        float64 (B, *size).
    """
    # One more, so that padding can be gathered even if all texts are empty.
    values = tf.concat([ids.flat_values, [0]], axis=0)
    rows, begin, end = _windows(ids, sequence_length)
    width = tf.reduce_max(tf.concat([end - begin, [1]], axis=0))
    num_at_once = tf.clip_by_value(tf.size(rows), 1, batch_size)

    def compute_batch(bounds):
        begin, end = bounds
        positions = begin[:, None] + tf.range(width)
        is_real = positions < end[:, None]
        return compute(tf.where(is_real, tf.gather(values, tf.where(is_real, positions, 0)), 0), is_real)

    by_window = tf.map_fn(
        compute_batch,
        [_in_batches(bounds, num_at_once) for bounds in (begin, end)],
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec((None, *size), tf.float64),
    )
    by_window = tf.reshape(by_window, (-1, *size))[: tf.size(rows)]
    return tf.math.unsorted_segment_sum(by_window, rows, num_texts)


def _windows(ids, length):
    """Returns row, begin and end (in the flat ids) of each window: int32 (num_windows,) three times."""
    starts, limits = tf.cast(ids.row_starts(), tf.int32), tf.cast(ids.row_limits(), tf.int32)
    counts = (limits - starts + length - 1) // length
    rows = tf.repeat(tf.range(tf.size(counts)), counts)
    number = tf.range(tf.size(rows)) - tf.gather(tf.cumsum(counts, exclusive=True), rows)
    begin = tf.gather(starts, rows) + number * length
    return rows, begin, tf.minimum(begin + length, tf.gather(limits, rows))


def _in_batches(values, size):
    """Cuts (num_windows,) into (num_batches, size), at least one batch, padded with zeros: empty windows."""
    missing = -tf.size(values) % size
    missing = tf.where(tf.size(values) > 0, missing, size)
    return tf.reshape(tf.pad(values, [[0, missing]]), (-1, size))
