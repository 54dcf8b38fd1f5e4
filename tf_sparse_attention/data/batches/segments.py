"""Batches of consecutive segments, for models with segment memory."""

from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count, check_seed
from tf_sparse_attention.data.batches.batches import Batches, Rows
from tf_sparse_attention.data.batches.windows import random_offset
from tf_sparse_attention.data.token_store import TokenStore


def segment_batches(
    store: TokenStore, batch_size: int, sequence_length: int, seed: int = 0, use_packing: bool = True
) -> Batches:
    """Return infinite batches of consecutive segments: row b continues row b of the previous batch.

    The tokens are cut into `batch_size` parts of equal length, one per row. An epoch starts at a random offset, wraps
    around the end of the stream, and reads each part in order, except for an incomplete last segment. Source: Dai et
    al. 2019, "Transformer-XL".

    Args:
        store: `TokenStore` with at least one segment per row.
        batch_size: rows per batch.
        sequence_length: tokens per segment.
        seed: integer in [0, 2**63). Default 0.
        use_packing: whether documents are separate sequences. If False, a row is one sequence per epoch. Default True.

    Returns:
        `Batches` of `(inputs, targets, weights)`, (B, T) each. Inputs: "token_ids", int32, the previous token, or 0 at
        the start of a document; "segment_ids", int32, equal in all segments of a document; "padding_mask", bool.
        Row b of a batch continues row b of the previous batch.

    Raises:
        ValueError: If an argument is out of range or the store is too small.

    Example:

    >>> batches = segment_batches(store, batch_size=8, sequence_length=512)
    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile("adam", loss=language_model_loss())
    >>> model.fit(batches.dataset(start=300), steps_per_epoch=100, shuffle=False)
    """
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_seed(seed)
    steps_per_epoch = store.num_tokens // batch_size // sequence_length
    if steps_per_epoch == 0:
        raise ValueError(
            "`store` must hold a segment for each row. Received: "
            f"{store.num_tokens} tokens, batch_size={batch_size}, sequence_length={sequence_length}."
        )
    part = store.num_tokens // batch_size

    def read(rows):
        epoch, segment = divmod(rows.step, steps_per_epoch)
        starts = random_offset(store, seed, epoch) + part * rows.items + segment * sequence_length
        # A row starts each epoch with a new document id.
        return read_segments(store, starts, sequence_length, epoch, use_packing)

    return Batches(lambda step: Rows(step, np.arange(batch_size)), read, steps_per_epoch=steps_per_epoch)


def evaluation_segments(
    store: TokenStore,
    batch_size: int,
    sequence_length: int,
    use_packing: bool = True,
    max_windows: int | None = None,
) -> Batches:
    """Cut a token store into consecutive segments that score every token once.

    Like `evaluation_batches`, but row b continues row b of the previous batch. A new or reset
    `tf_sparse_attention.models.StatefulModel` then has the preceding tokens in its segment memory as context.

    Args:
        store: `TokenStore`.
        batch_size: rows per batch.
        sequence_length: tokens per segment.
        use_packing: whether documents are separate sequences. Default True.
        max_windows: maximum number of segments, rounded up to full batches. Only the first segments of each row are
            used. Default: None, all.

    Returns:
        `Batches` of `(inputs, targets, weights)`, (B, T) each. Inputs: "token_ids", int32, the previous token, or 0 at
        the start of a document; "segment_ids", int32, equal in all segments of a document; "padding_mask", bool.
        Row b of a batch continues row b of the previous batch.

    Raises:
        ValueError: If a size is not positive.

    Example:

    >>> model = StatefulModel(language_model, batch_size=8)
    >>> model.compile(loss=language_model_loss())
    >>> model.evaluate(evaluation_segments(store, batch_size=8, sequence_length=512).dataset())
    """
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_optional_count("max_windows", max_windows)
    num_batches = -(-store.num_tokens // (sequence_length * batch_size))
    begins = np.minimum(np.arange(batch_size + 1) * num_batches * sequence_length, store.num_tokens)

    def read(rows):
        starts = begins[rows.items] + rows.step * sequence_length
        return read_segments(store, starts, sequence_length, use_packing=use_packing, stop=begins[rows.items + 1])

    if max_windows is not None:
        num_batches = min(num_batches, -(-max_windows // batch_size))
    return Batches(lambda number: Rows(number, np.arange(batch_size)), read, num_batches)


def read_segments(
    store: TokenStore,
    starts: Sequence[int] | np.ndarray,
    length: int,
    epoch: int = 0,
    use_packing: bool = True,
    stop: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Read segments of consecutive tokens.

    Args:
        store: `TokenStore`.
        starts: int (B,), position of the first token of each segment; positions wrap around the end.
        length: tokens per segment.
        epoch: epoch number, which changes the document ids.
        use_packing: whether documents have different ids and so do not attend to each other.
        stop: int (B,), position after the last token of each row. Default: None, no end.

    Returns:
        `(inputs, targets, weights)` of shape (B, length). Inputs: "token_ids", int32, the previous token, or 0 at the
        start of a document; "segment_ids", int32, document ids from 1 on, equal in all segments of an epoch;
        "padding_mask", bool. Targets: int32, the tokens. Weights: float32. All are 0 from `stop` on.
    """
    positions = np.asarray(starts)[:, None] + np.arange(-1, length)  # the first input is the token before the segment
    rounds, inside = np.divmod(positions, store.num_tokens)
    tokens = np.asarray(store.tokens[inside], np.int32)
    documents = (
        np.searchsorted(store.document_offsets, inside, side="right") - 1 if use_packing else np.zeros_like(positions)
    )
    # Document ids change after each wrap-around and in each epoch, which wraps around at most once.
    documents = documents + store.num_documents * (rounds + 3 * epoch)
    before = documents[:, :-1] == documents[:, 1:]
    ids = np.where(before, tokens[:, :-1], 0)
    segments = (1 + documents[:, 1:] % (2**31 - 1)).astype(np.int32)
    is_token = np.ones_like(before) if stop is None else positions[:, 1:] < np.asarray(stop)[:, None]
    targets, ids, segments = (np.where(is_token, x, 0).astype(np.int32) for x in (tokens[:, 1:], ids, segments))
    return {"token_ids": ids, "segment_ids": segments, "padding_mask": is_token}, targets, is_token.astype("float32")
