"""Evaluation batches that score every token exactly once."""

from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count, check_rate
from tf_sparse_attention.data.batches.masking import hidden_positions, pack_masked
from tf_sparse_attention.data.batches.packing import pack_windows
from tf_sparse_attention.data.batches.streams import batch_stream
from tf_sparse_attention.data.batches.token_store import TokenStore, read_windows


def evaluation_batches(
    store: TokenStore,
    batch_size: int,
    sequence_length: int,
    use_packing: bool = True,
    max_windows: int | None = None,
    mask_rate: float = 0.0,
    overlap: int = 0,
    first_batch: int = 0,
    num_batches: int | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    num_parts: int = 1,
) -> Any:
    """Cuts a token store into windows one after the other; the targets of weight 1 in order are exactly its tokens.

    The last window is padded on the right and the last batch with empty rows, both of weight 0, so that every batch has
    the same static shape. Divide the summed loss in nats by ln 2 times `store.num_bytes` for bits per byte (the end ids
    are scored too, as part of the text), by `store.num_words` for the exponent of the perplexity per word.

    Note: each window starts without context, so metrics improve with `sequence_length` for that reason alone. With
    `overlap` every token but the first ones sees that many tokens at least, at the cost of T / (T - overlap) times the
    work.

    Args:
        store: `TokenStore`.
        batch_size: windows in a batch, over all replicas.
        sequence_length: tokens in a window.
        use_packing: whether documents in a window are separate sequences, see `pack_windows`. Default True.
        max_windows: maximum number of windows to score, evenly spread over the text. Default: None, all.
        mask_rate: fraction of the tokens that is hidden and scored, the same ones each time; see `pack_masked`.
            Default 0: all tokens are scored, each given those before it.
        overlap: tokens at the beginning of a window that are context only, since the window before scores them.
            Less than `sequence_length`; must be 0 with hidden tokens. Default 0.
        first_batch: index of the first batch, to resume an evaluation. Default 0.
        num_batches: number of batches. Default: None, all remaining ones.
        num_shards, shard_index, num_parts: see `shard_rows`.

    Returns:
        Finite data set, see `TrainingBatches.dataset`, of `(inputs, targets, weights)`, see `pack_windows`, of known
        cardinality, the same for every shard.

    Raises:
        ValueError: If a size is not positive or the batch cannot be divided.

    Example:

    >>> model.evaluate(evaluation_batches(store, batch_size=8, sequence_length=1024))
    """
    check_rate("mask_rate", mask_rate)
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_optional_count("max_windows", max_windows)
    _check_overlap(overlap, sequence_length, mask_rate)
    all_windows = count_windows(store.num_tokens, sequence_length, overlap)
    num_windows = all_windows if max_windows is None else min(all_windows, max_windows)
    last_batch = -(-num_windows // batch_size)
    last_batch = last_batch if num_batches is None else min(last_batch, first_batch + num_batches)

    def read(first_window, rows):
        numbers = [first_window + row for row in range(rows)]
        indices = [number * all_windows // num_windows for number in numbers]
        # The window of a padding row starts at the end of the stream and so is empty.
        starts = [
            index * (sequence_length - overlap) if number < num_windows else store.num_tokens
            for number, index in zip(numbers, indices, strict=True)
        ]
        num_context = [overlap if index else 0 for index in indices]
        return read_windows(store.tokens, starts, sequence_length), np.array(num_context, np.int32)

    def element(batch, first_row, rows):
        first_window = batch * batch_size + first_row
        tokens, num_context = read(first_window, rows)
        if mask_rate:
            hidden = hidden_positions(first_window + np.arange(rows), sequence_length, mask_rate)
            return pack_masked(tokens, hidden, store.end_id, use_packing)
        inputs, targets, weights = pack_windows(tokens, store.end_id, use_packing)
        is_new = np.arange(sequence_length) >= num_context[:, None]
        return inputs, targets, weights * is_new.astype("float32")

    stop = max(first_batch, last_batch)
    return batch_stream(element, batch_size, first_batch, stop, num_shards, shard_index, num_parts)


def count_windows(num_tokens: int, sequence_length: int, overlap: int = 0) -> int:
    """Returns how many windows cover a text, each but the first beginning with `overlap` tokens of the one before."""
    return 1 + max(0, -(-(num_tokens - sequence_length) // (sequence_length - overlap)))


def _check_overlap(overlap, sequence_length, mask_rate):
    if not 0 <= overlap < sequence_length:
        raise ValueError(
            "`overlap` must be 0 or more and less than `sequence_length`. "
            f"Received: overlap={overlap}, sequence_length={sequence_length}."
        )
    if overlap and mask_rate:
        raise ValueError(f"`overlap` must be 0 with hidden tokens. Received: overlap={overlap}, mask_rate={mask_rate}.")
