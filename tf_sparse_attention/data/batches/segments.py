"""Segments of a token stream that continue in the next batch, for models with segment memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count
from tf_sparse_attention.data.batches.streams import batch_stream
from tf_sparse_attention.data.batches.token_store import TokenStore
from tf_sparse_attention.data.batches.training import TrainingBatches


class SegmentBatches(TrainingBatches):
    """Endless consecutive segments of a token store: row b of a batch continues row b of the batch before.

    The stream is cut into `batch_size` stretches of equal length, one a row, and an epoch reads each from its start to
    its end (all but what is left of a segment), from an offset that is drawn for each epoch, wrapping around the end of
    the stream. Batch k is a pure function of (seed, k), so a resumed run gets exactly the batches of an uninterrupted
    one. Source: the order of batches of Dai et al. 2019, "Transformer-XL".

    Args:
        store: `TokenStore` with at least one segment for each row.
        batch_size: rows of a batch.
        sequence_length: tokens in a segment.
        seed: integer in [0, 2**63). Default 0.
        use_packing: whether documents are separate sequences; if not, an epoch of a row is one text. Default True.

    Attributes:
        steps_per_epoch: segments of a row in an epoch.
        num_windows: those of all rows.

    Raises:
        ValueError: If a size is not positive, the seed out of range or the store too small.

    Example:

    >>> batches = SegmentBatches(store, batch_size=8, sequence_length=512)
    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile("adam", loss=language_model_loss())
    >>> model.fit(batches.dataset(start_step=300), steps_per_epoch=100, shuffle=False)
    """

    def __init__(
        self, store: TokenStore, batch_size: int, sequence_length: int, seed: int = 0, use_packing: bool = True
    ) -> None:
        super().__init__(store, batch_size, sequence_length, seed, use_packing)
        self.steps_per_epoch = store.num_tokens // batch_size // sequence_length
        self.num_windows = self.steps_per_epoch * batch_size
        if self.steps_per_epoch == 0:
            raise ValueError(
                "`store` must hold a segment for each row. Received: "
                f"{store.num_tokens} tokens, batch_size={batch_size}, sequence_length={sequence_length}."
            )

    def _element(self, step, first_row, rows):
        """Returns rows `first_row` to `first_row + rows` of the batch of a step."""
        epoch, segment = divmod(step, self.steps_per_epoch)
        stretch = self.store.num_tokens // self.batch_size
        starts = self._offset(epoch) + stretch * (first_row + np.arange(rows)) + segment * self.sequence_length
        # A row starts each epoch with a new document id, whatever it read last.
        return read_segments(self.store, starts, self.sequence_length, epoch, self.use_packing)


def read_segments(
    store: TokenStore,
    starts: Sequence[int] | np.ndarray,
    length: int,
    epoch: int = 0,
    use_packing: bool = True,
    stop: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Reads consecutive tokens as targets, with the inputs that go with them.

    Args:
        store: `TokenStore`.
        starts: int (B,), the position of each segment's first token; positions wrap around the end.
        length: tokens in a segment.
        epoch: integer that goes into the numbers of documents.
        use_packing: whether documents have numbers of their own and so do not attend to each other.
        stop: int (B,), the position where each row's text ends. Default: None, no end.

    Returns:
        `(inputs, targets, weights)` of shape (B, length): inputs "token_ids", int32, the token before each, 0 where
        that is in another document; "segment_ids", int32, the document, the same number in every segment of an epoch,
        from 1 on; "padding_mask"; targets, int32, the tokens; weights, float32. All are 0 from `stop` on.
    """
    positions = np.asarray(starts)[:, None] + np.arange(-1, length)  # one before, which is the first input
    rounds, inside = np.divmod(positions, store.num_tokens)
    tokens = np.asarray(store.tokens[inside], np.int32)
    documents = (
        np.searchsorted(store.document_offsets, inside, side="right") - 1 if use_packing else np.zeros_like(positions)
    )
    # Document numbers differ after each wrap-around and in each epoch, which wraps around once at most.
    documents = documents + store.num_documents * (rounds + 3 * epoch)
    before = documents[:, :-1] == documents[:, 1:]
    ids = np.where(before, tokens[:, :-1], 0)
    segments = (1 + documents[:, 1:] % (2**31 - 1)).astype(np.int32)
    is_token = np.ones_like(before) if stop is None else positions[:, 1:] < np.asarray(stop)[:, None]
    targets, ids, segments = (np.where(is_token, x, 0).astype(np.int32) for x in (tokens[:, 1:], ids, segments))
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": is_token}, targets, is_token.astype("float32")


def evaluation_segments(
    store: TokenStore,
    batch_size: int,
    sequence_length: int,
    use_packing: bool = True,
    max_windows: int | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    num_parts: int = 1,
) -> Any:
    """Cuts a token store into segments that score every token once, each row continued in the next batch.

    As `evaluation_batches`, but row b of all batches together is one stretch of the text, so that a model with
    segment memory (`tf_sparse_attention.models.StatefulModel`, new or reset) has the preceding text as context.

    Args:
        store: `TokenStore`.
        batch_size: rows of a batch.
        sequence_length: tokens in a segment.
        use_packing: whether documents are separate sequences. Default True.
        max_windows: maximum number of segments, the first ones of each row, rounded up to full batches. Default:
            None, all.
        num_shards, shard_index, num_parts: see `shard_rows`.

    Returns:
        Finite data set, see `TrainingBatches.dataset`, of `(inputs, targets, weights)` as `SegmentBatches` has them, of
        known cardinality.

    Raises:
        ValueError: If a size is not positive.

    Example:

    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile(loss=language_model_loss())
    >>> model.evaluate(evaluation_segments(store, batch_size=8, sequence_length=512))
    """
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_optional_count("max_windows", max_windows)
    num_batches = -(-store.num_tokens // (sequence_length * batch_size))
    begins = np.minimum(np.arange(batch_size + 1) * num_batches * sequence_length, store.num_tokens)

    def element(batch, first, rows):
        starts = begins[first : first + rows] + batch * sequence_length
        stop = begins[first + 1 : first + rows + 1]
        return read_segments(store, starts, sequence_length, use_packing=use_packing, stop=stop)

    if max_windows is not None:
        num_batches = min(num_batches, -(-max_windows // batch_size))
    return batch_stream(element, batch_size, 0, num_batches, num_shards, shard_index, num_parts)
