"""Texts of any length in windows: what `score` and `embed` share."""

import tensorflow as tf


def sums_of_windows(ids, num_texts, sequence_length, batch_size, compute, size=()):
    """Returns, for each text, the sum of what is computed for its windows.

    Args:
        ids: ragged int32 (B, None), tokens of the texts.
        num_texts: B, a scalar tensor.
        sequence_length: most tokens in a window.
        batch_size: most windows at once.
        compute: function (tokens, real) -> float64 (S, *size), of int32 (S, W) tokens with 0 where they are not real.
        size: see above.

    Returns:
        float64 (B, *size).
    """
    # One more, so that there is something to read for padding even if all texts are empty.
    values = tf.concat([ids.flat_values, [0]], axis=0)
    rows, begin, end = _windows(ids, sequence_length)
    width = tf.reduce_max(tf.concat([end - begin, [1]], axis=0))
    at_once = tf.clip_by_value(tf.size(rows), 1, batch_size)

    def of_batch(bounds):
        begin, end = bounds
        places = begin[:, None] + tf.range(width)
        real = places < end[:, None]
        return compute(tf.where(real, tf.gather(values, tf.where(real, places, 0)), 0), real)

    by_window = tf.map_fn(
        of_batch,
        [_in_batches(bounds, at_once) for bounds in (begin, end)],
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
    """Cuts (num_windows,) into (num_batches, size), at least one batch, filled up with zeros: empty windows."""
    missing = -tf.size(values) % size
    missing = tf.where(tf.size(values) > 0, missing, size)
    return tf.reshape(tf.pad(values, [[0, missing]]), (-1, size))
