"""Rows of token ids in graphs: special ids, and sums over windows of long rows."""

import math
from collections.abc import Callable

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.types import Tensor


def append_end(ids: tf.RaggedTensor, tokenizer: Tokenizer) -> tf.RaggedTensor:
    """Append the end id to each row."""
    return tf.concat([ids, _column(ids, tokenizer.end_id)], axis=1)


def with_start_and_end(ids: tf.RaggedTensor, tokenizer: Tokenizer) -> tf.RaggedTensor:
    """Add the start id and the end id to each row."""
    return tf.concat([_column(ids, tokenizer.start_id), append_end(ids, tokenizer)], axis=1)


def _column(ids, value):
    column = tf.fill((ids.nrows(), 1), tf.constant(value, ids.dtype))
    return tf.RaggedTensor.from_tensor(column, row_splits_dtype=ids.row_splits.dtype)


def row_lengths(ids: tf.RaggedTensor) -> Tensor:
    """Return the lengths of rows, int32 (B,)."""
    return tf.cast(ids.row_lengths(), tf.int32)


def maximum(lengths: Tensor, minimum: int = 1) -> Tensor:
    """Return the maximum of the lengths (B,), but at least `minimum`."""
    return tf.reduce_max(tf.concat([lengths, [minimum]], axis=0))


def bits(nats: Tensor, num_parts: Tensor) -> Tensor:
    """Convert nats (B,) to bits per part, such as per byte: float32 (B,), 0 for rows without parts."""
    return tf.cast(tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_parts, nats.dtype)), tf.float32)


def sum_nats(
    model: LanguageModel, start_id: int, ids: tf.RaggedTensor, sequence_length: int, batch_size: int
) -> Tensor:
    """Return the negative log-likelihood of each row, float64 (B,); see `sum_over_windows`."""

    def window_nats(targets, is_token):
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=start_id)
        logits = model({"token_ids": tf.where(is_token, inputs, 0), "padding_mask": is_token}, training=False)
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(tf.where(is_token, tf.cast(values, tf.float64), 0), axis=1)

    return sum_over_windows(ids, sequence_length, batch_size, window_nats)


def sum_over_windows(
    ids: tf.RaggedTensor,
    sequence_length: int,
    batch_size: int,
    compute: Callable[[Tensor, Tensor], Tensor],
    size: tuple[int, ...] = (),
) -> Tensor:
    """Return the sum of a function over the consecutive windows of each row.

    Args:
        ids: ragged int32 (B, None), tokens.
        sequence_length: maximum number of tokens in a window.
        batch_size: maximum number of windows computed at once.
        compute: function (tokens, is_token) -> float64 (S, *size), of int32 (S, W) tokens and bool (S, W).
        size: shape of the result for one window. Default: `()`.

    Returns:
        float64 (B, *size).
    """
    checks.check_count("batch_size", batch_size)
    # One more value, so that padding can be gathered even if all rows are empty.
    values = tf.concat([ids.flat_values, [0]], axis=0)
    rows, begin, end = _windows(ids, sequence_length)
    width = maximum(end - begin)
    num_at_once = tf.clip_by_value(tf.size(rows), 1, batch_size)

    def compute_batch(bounds):
        begin, end = bounds
        positions = begin[:, None] + tf.range(width)
        is_token = positions < end[:, None]
        return compute(tf.where(is_token, tf.gather(values, tf.where(is_token, positions, 0)), 0), is_token)

    sums = tf.map_fn(
        compute_batch,
        [_batches(bounds, num_at_once) for bounds in (begin, end)],
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec((None, *size), tf.float64),
    )
    sums = tf.reshape(sums, (-1, *size))[: tf.size(rows)]
    return tf.math.unsorted_segment_sum(sums, rows, tf.cast(ids.nrows(), tf.int32))


def _windows(ids, length):
    """Return row, begin and end (in the flat ids) of each window: int32 (num_windows,) three times."""
    starts, limits = tf.cast(ids.row_starts(), tf.int32), tf.cast(ids.row_limits(), tf.int32)
    windows = tf.ragged.range(starts, limits, length)
    rows, begin = tf.cast(windows.value_rowids(), tf.int32), windows.flat_values
    return rows, begin, tf.minimum(begin + length, tf.gather(limits, rows))


def _batches(values, size):
    """Reshape (num_windows,) to (num_batches, size), with at least one batch. Zero padding gives empty windows."""
    missing = -tf.size(values) % size
    missing = tf.where(tf.size(values) > 0, missing, size)
    return tf.reshape(tf.pad(values, [[0, missing]]), (-1, size))
