"""The signature `score`: how likely texts are."""

import math

import tensorflow as tf


def score_function(model, tokenizer, sequence_length, batch_size):
    def window_nats(values, width, begin, end):
        places = begin[:, None] + tf.range(width)
        real = places < end[:, None]
        targets = tf.where(real, tf.gather(values, tf.where(real, places, 0)), 0)
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        logits = model({"token_ids": tf.where(real, inputs, 0), "padding_mask": real}, training=False)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(tf.where(real, tf.cast(nats, tf.float64), 0), axis=1)

    def score(text):
        ids = tokenizer.tokenize(text)
        # One more, so that there is something to read for padding even if all texts are empty.
        values = tf.concat([ids.flat_values, [0]], axis=0)
        rows, begin, end = _windows(ids, sequence_length)
        width = tf.reduce_max(tf.concat([end - begin, [1]], axis=0))
        size = tf.clip_by_value(tf.size(rows), 1, batch_size)
        batches = [_in_batches(bounds, size) for bounds in (begin, end)]
        by_window = tf.map_fn(
            lambda bounds: window_nats(values, width, *bounds),
            batches,
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec((None,), tf.float64),
        )
        by_window = tf.reshape(by_window, (-1,))[: tf.size(rows)]
        nats = tf.math.unsorted_segment_sum(by_window, rows, tf.size(text))
        num_bytes = tf.strings.length(text, unit="BYTE")
        bits_per_byte = tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_bytes, tf.float64))
        nats, bits_per_byte = tf.cast(nats, tf.float32), tf.cast(bits_per_byte, tf.float32)
        return {"bits_per_byte": bits_per_byte, "nats": nats, "num_bytes": num_bytes}

    return tf.function(score, input_signature=[tf.TensorSpec((None,), tf.string, "text")], autograph=False)


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
