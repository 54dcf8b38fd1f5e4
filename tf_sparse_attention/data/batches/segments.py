"""Segments of a token stream that go on in the next batch, for models that remember what they read."""

import numpy as np

from tf_sparse_attention.data.batches.evaluation import check_sizes
from tf_sparse_attention.data.batches.sharding import shard_rows
from tf_sparse_attention.data.batches.training import TrainingBatches


class SegmentBatches(TrainingBatches):
    """Endless consecutive segments of a token store: row b of a batch goes on where row b of the last one stopped.

    The stream is cut into `batch_size` stretches of equal length, one a row, and an epoch reads each from its start to
    its end (all but what is left of a segment), from an offset that is drawn for each epoch, past the end of the stream
    and on from the beginning. Batch k is a pure function of (seed, k), so a run that is started again at its step gets
    exactly the batches it would have got. Source: the order of batches of Dai et al. 2019, "Transformer-XL".

    Args:
        store: `TokenStore` with at least one segment for each row.
        batch_size: Rows of a batch.
        sequence_length: Tokens in a segment.
        seed: Integer in [0, 2**63). Default 0.
        packed: Whether documents are kept apart, default True; if not, an epoch of a row is one text.

    Attributes:
        steps_per_epoch: Segments of a row in an epoch.
        num_windows: Those of all rows.

    Raises:
        ValueError: If a size is not positive, the seed out of range or the store too small.

    Example:

    >>> batches = SegmentBatches(store, batch_size=8, sequence_length=512)
    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile("adam", loss=language_model_loss())
    >>> model.fit(batches.dataset(start_step=300), steps_per_epoch=100, shuffle=False)
    """

    def __init__(self, store, batch_size, sequence_length, seed=0, packed=True):
        super().__init__(store, batch_size, sequence_length, seed, packed)
        self.steps_per_epoch = store.num_tokens // batch_size // sequence_length
        self.num_windows = self.steps_per_epoch * batch_size
        if self.steps_per_epoch == 0:
            raise ValueError(
                "`store` must hold a segment for each row. Received: "
                f"{store.num_tokens} tokens, batch_size={batch_size}, sequence_length={sequence_length}."
            )

    def _element(self, step, first_row, rows):
        """Rows `first_row` to `first_row + rows` of the batch of a step, in TensorFlow."""
        return segment_element(self._read_segments, [step, first_row], rows, self.sequence_length)

    def _read_segments(self, step, first_row, rows):
        epoch, segment = divmod(int(step), self.steps_per_epoch)
        stretch = self.store.num_tokens // self.batch_size
        starts = self._offset(epoch) + stretch * (first_row + np.arange(rows)) + segment * self.sequence_length
        # A row starts another epoch with another text, whatever it read last.
        return read_segments(self.store, starts, self.sequence_length, epoch, self.packed)


def segment_element(read, arguments, rows, length):
    """Returns `(inputs, targets, weights)` of a function that reads segments, with static shapes, in TensorFlow.

    Args:
        read: Function of the arguments and `rows` that returns what `read_segments` returns.
        arguments: List of integer tensors.
        rows: Rows of the element, an integer.
        length: Tokens in a segment.
    """
    import tensorflow as tf

    kinds = [tf.int32, tf.int32, tf.int32]
    tokens, ids, segments = tf.numpy_function(lambda *given: read(*given, rows), arguments, kinds, stateful=False)
    tokens, ids, segments = (tf.ensure_shape(x, (rows, length)) for x in (tokens, ids, segments))
    is_token = tf.not_equal(segments, 0)
    inputs = {"token_ids": ids, "segment_ids": segments, "padding_mask": is_token}
    return inputs, tokens, tf.cast(is_token, tf.float32)


def read_segments(store, starts, length, epoch=0, packed=True, stop=None):
    """Reads consecutive tokens, the inputs that go with them, and the number of the document of each.

    Args:
        store: `TokenStore`.
        starts: int (B,), the place of each segment's first token; places go on past the end at the beginning.
        length: Tokens in a segment.
        epoch: Integer that goes into the numbers of documents.
        packed: Whether documents have numbers of their own and do not see each other.
        stop: int (B,), the place where each row's text ends. None: nowhere.

    Returns:
        Three int32 arrays (B, length): the tokens; the token before each, 0 where that is in another document; and the
        document, the same number in every segment of an epoch, from 1 on. All are 0 from `stop` on.
    """
    places = np.asarray(starts)[:, None] + np.arange(-1, length)  # one before, which is the first input
    rounds, inside = np.divmod(places, store.num_tokens)
    tokens = np.asarray(store.tokens[inside], np.int32)
    documents = np.searchsorted(store.document_offsets, inside, side="right") - 1 if packed else np.zeros_like(places)
    # The stream begins anew with documents of other numbers, and so does each epoch, which passes its end once at most.
    documents = documents + store.num_documents * (rounds + 3 * epoch)
    before = documents[:, :-1] == documents[:, 1:]
    ids = np.where(before, tokens[:, :-1], 0)
    segments = (1 + documents[:, 1:] % (2**31 - 1)).astype(np.int32)
    is_token = np.ones_like(before) if stop is None else places[:, 1:] < np.asarray(stop)[:, None]
    return tuple(np.where(is_token, x, 0).astype(np.int32) for x in (tokens[:, 1:], ids, segments))


def evaluation_segments(
    store, batch_size, sequence_length, packed=True, max_windows=None, num_shards=1, shard_index=0, num_parts=1
):
    """Cuts a token store into segments that score every token once, each row going on in the next batch.

    As `evaluation_batches`, but row b of all batches together is one stretch of the text, so that a model that
    remembers what it read (`tf_sparse_attention.models.StatefulModel`, new or reset) has the text before as context.

    Args:
        store: `TokenStore`.
        batch_size: Rows of a batch.
        sequence_length: Tokens in a segment.
        packed: Whether documents are kept apart. Default True.
        max_windows: Read only so many segments (rounded up to whole batches), the first of each row; `None` is all.
        num_shards, shard_index, num_parts: See `shard_rows`.

    Returns:
        Finite `tf.data.Dataset` of `(inputs, targets, weights)` as `SegmentBatches` has them, of known cardinality.

    Raises:
        ValueError: If a size is not positive.

    Example:

    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile(loss=language_model_loss())
    >>> model.evaluate(evaluation_segments(store, batch_size=8, sequence_length=512))
    """
    import tensorflow as tf

    check_sizes(sequence_length=sequence_length, max_windows=max_windows)
    first_row, rows = shard_rows(batch_size, num_shards, shard_index, num_parts)
    num_batches = -(-store.num_tokens // (sequence_length * batch_size))
    begins = np.minimum(np.arange(batch_size + 1) * num_batches * sequence_length, store.num_tokens)

    def read(batch, first, rows):
        starts = begins[first : first + rows] + batch * sequence_length
        return read_segments(store, starts, sequence_length, packed=packed, stop=begins[first + 1 : first + rows + 1])

    def element(counter):
        first = first_row + counter % num_parts * rows
        return segment_element(read, [counter // num_parts, first], rows, sequence_length)

    if max_windows is not None:
        num_batches = min(num_batches, -(-max_windows // batch_size))
    dataset = tf.data.Dataset.range(num_batches * num_parts)
    return dataset.map(element, num_parallel_calls=2, deterministic=True).prefetch(tf.data.AUTOTUNE)
