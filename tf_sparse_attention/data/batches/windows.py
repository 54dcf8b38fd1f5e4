"""Batches of windows of a token stream, in random order or in sequence, for training and evaluation."""

import hashlib
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count, check_rate, check_seed
from tf_sparse_attention.data.batches.batches import Batches, Rows, consecutive_rows
from tf_sparse_attention.data.batches.random_order import shuffled_index
from tf_sparse_attention.data.token_store import TokenStore


def training_batches(
    store: TokenStore,
    batch_size: int,
    sequence_length: int,
    seed: int = 0,
    use_packing: bool = True,
    mask_rate: float = 0.0,
) -> Batches:
    """Return infinite batches of random windows of a token store.

    An epoch cuts the stream into max(1, num_tokens // sequence_length) windows from a random offset, wrapping around
    the end, and visits them in random order. Each token is read at most once per epoch. A batch can contain the end of
    an epoch and the start of the next. A stream shorter than one window is padded.

    Args:
        store: `TokenStore`.
        batch_size: windows per batch, over all replicas.
        sequence_length: tokens per window.
        seed: integer in [0, 2**63). Default 0.
        use_packing: whether documents in a window are separate sequences, see `pack_windows`. Default True.
        mask_rate: fraction of masked tokens for bidirectional models, see `pack_masked`. Default 0: causal models.

    Returns:
        `Batches` of `(inputs, targets, weights)`, see `pack_windows`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> batches = training_batches(store, batch_size=8, sequence_length=1024)
    >>> model.fit(batches.dataset(start=300), steps_per_epoch=100, shuffle=False)
    """
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_seed(seed)
    check_rate("mask_rate", mask_rate)
    num_windows = max(1, store.num_tokens // sequence_length)
    # Windows wrap around the end of the stream. Only streams shorter than a window and streams of recordings, with end
    # id 0, have padding.
    has_padding = store.num_tokens < sequence_length or store.end_id == 0

    def read(rows):
        epoch, position = np.divmod(rows.items, num_windows)
        windows = shuffled_index(position, seed, epoch, num_windows)
        offsets = np.array([random_offset(store, seed, int(number)) for number in epoch])
        starts = (offsets + windows * sequence_length) % store.num_tokens
        tokens = read_windows(store.tokens, starts, sequence_length, wrap=True)
        if mask_rate:
            is_masked = masked_positions(rows.items, sequence_length, mask_rate, seed)
            return pack_masked(tokens, is_masked, store.end_id, use_packing)
        return pack_windows(tokens, store.end_id, use_packing, has_padding)

    return Batches(consecutive_rows(batch_size), read, steps_per_epoch=-(-num_windows // batch_size))


def evaluation_batches(
    store: TokenStore,
    batch_size: int,
    sequence_length: int,
    use_packing: bool = True,
    max_windows: int | None = None,
    mask_rate: float = 0.0,
    overlap: int = 0,
) -> Batches:
    """Cut a token store into consecutive windows that score every token exactly once.

    The last window is padded on the right and the last batch has empty rows, both of weight 0, so that all batches have
    the same shape. Bits per byte are the summed loss in nats, divided by ln 2 and `store.num_bytes`; end ids are scored
    too, as part of the text. The perplexity per word is exp(summed loss / `store.num_words`).

    Note: each window starts without context, so longer windows give better scores even for the same model. With
    `overlap`, each token after the first window has at least `overlap` tokens of context, at
    sequence_length / (sequence_length - overlap) times the cost.

    Args:
        store, batch_size, sequence_length, use_packing: see `training_batches`.
        max_windows: maximum number of windows to score, evenly spread over the stream. Default: None, all.
        mask_rate: fraction of tokens that are masked and scored, always the same. Default 0: all tokens are scored.
        overlap: tokens at the beginning of a window that are not scored, because the previous window scores them. Less
            than `sequence_length`; must be 0 with masked tokens. Default 0.

    Returns:
        `Batches` of `(inputs, targets, weights)`, see `pack_windows`.

    Raises:
        ValueError: If an argument is out of range.

    Example:

    >>> batches = evaluation_batches(store, batch_size=8, sequence_length=1024)
    >>> model.evaluate(batches.dataset())
    """
    check_rate("mask_rate", mask_rate)
    check_count("batch_size", batch_size)
    check_count("sequence_length", sequence_length)
    check_optional_count("max_windows", max_windows)
    if not 0 <= overlap < sequence_length:
        raise ValueError(
            "`overlap` must be 0 or more and less than `sequence_length`. "
            f"Received: overlap={overlap}, sequence_length={sequence_length}."
        )
    if overlap and mask_rate:
        raise ValueError(f"`overlap` must be 0 with masked tokens. Received: overlap={overlap}, mask_rate={mask_rate}.")
    all_windows = count_windows(store.num_tokens, sequence_length, overlap)
    num_windows = all_windows if max_windows is None else min(all_windows, max_windows)

    def read(rows):
        windows = rows.items * all_windows // num_windows
        # The window of an empty row starts at the end of the stream.
        starts = np.where(rows.items < 0, store.num_tokens, windows * (sequence_length - overlap))
        tokens = read_windows(store.tokens, starts, sequence_length)
        if mask_rate:
            is_masked = masked_positions(np.maximum(rows.items, 0), sequence_length, mask_rate)
            return pack_masked(tokens, is_masked, store.end_id, use_packing)
        inputs, targets, weights = pack_windows(tokens, store.end_id, use_packing)
        is_context = np.arange(sequence_length) < np.where(windows > 0, overlap, 0)[:, None]
        return inputs, targets, np.where(is_context, 0, weights).astype("float32")

    return Batches(consecutive_rows(batch_size, num_windows), read, -(-num_windows // batch_size))


def count_windows(num_tokens: int, sequence_length: int, overlap: int = 0) -> int:
    """Return the number of windows that cover a stream, each sharing `overlap` tokens with the previous window."""
    return 1 + max(0, -(-(num_tokens - sequence_length) // (sequence_length - overlap)))


def random_offset(store: TokenStore, seed: int, epoch: int) -> int:
    """Return the position in a token stream at which an epoch starts."""
    # A hash, unlike the generators of NumPy and TensorFlow, is the same in every version of every library.
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big") % store.num_tokens


def read_windows(tokens: np.ndarray, starts: Sequence[int] | np.ndarray, length: int, wrap: bool = False) -> np.ndarray:
    """Read windows of consecutive tokens (num_tokens,) from the positions `starts` (B,), int32 (B, length).

    With `wrap`, windows continue at position 0 after the end of the stream, up to their start. The rest of a window,
    or all of a window that starts beyond the end, is padded with 0 on the right.
    """
    starts = np.asarray(starts)[:, None]
    positions = starts + np.arange(length)
    exists = positions < (starts + len(tokens) if wrap else len(tokens))
    return np.where(exists, tokens[positions % len(tokens)], 0).astype(np.int32)


def pack_windows(
    tokens: np.ndarray, end_id: int = 1, use_packing: bool = True, padded: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Turn windows of a stream of documents into inputs, targets and weights of a language model.

    Target t is token t of the window. The input at t is the token before it, or the start id 0 at the first position of
    the window and at the first token of every document. So packing does not change the inputs of a document. Segment
    id t is the 1-based number, within the window, of the document of target t.

    Example: a window of 6 tokens with the documents "ab" and "c" and the end id 1 (a, b, c are token ids):

    ```
    targets      a b 1 c 1 0
    token_ids    0 a b 0 c 0
    segment_ids  1 1 1 2 2 0
    weights      1 1 1 1 1 0
    ```

    Args:
        tokens: int32 (B, T), ids of documents that each end with `end_id`; 0 is padding on the right.
        end_id: the id that ends a document. Default 1. 0: documents are separated by padding, which is not scored.
        use_packing: whether documents are separate sequences. If False the window is one sequence: there are no
            segments, and the input after the end of a document is the end id. Default True.
        padded: whether windows can have padding, so that inputs need a "padding_mask". Default True.

    Returns:
        `(inputs, targets, weights)` for `keras.Model.fit`: inputs {"token_ids", "segment_ids"}, int32 (B, T)
        (without "segment_ids" if `use_packing` is False), and "padding_mask", bool (B, T), if `padded`; targets int32
        (B, T); weights float32 (B, T), 1 on tokens and 0 on padding. Inputs and segments are 0 on padding.
    """
    tokens = np.asarray(tokens)
    is_token = tokens != 0
    previous = np.pad(tokens[:, :-1], [(0, 0), (1, 0)])
    masks = {"padding_mask": is_token} if padded else {}
    weights = is_token.astype("float32")
    if not use_packing:
        return {"token_ids": np.where(is_token, previous, 0), **masks}, tokens, weights
    begins = previous == end_id
    token_ids = np.where(is_token & ~begins, previous, 0)
    segment_ids = np.where(is_token, 1 + np.cumsum(begins, axis=1, dtype="int32"), 0)
    return {"token_ids": token_ids, "segment_ids": segment_ids, **masks}, tokens, weights


def masked_positions(numbers: Sequence[int] | np.ndarray, length: int, rate: float, seed: int = 0) -> np.ndarray:
    """Choose masked positions, bool (B, length), as a pure function of the seed and the number of each window."""
    # One generator per window, so that the result does not depend on the batch size or the process.
    draws = [np.random.Generator(np.random.Philox(key=[seed, int(number)])).random(length) for number in numbers]
    return np.array(draws).reshape(len(numbers), length) < rate


def pack_masked(
    tokens: np.ndarray, is_masked: np.ndarray, end_id: int = 1, use_packing: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Turn windows of a stream of documents into inputs with masked tokens, and the targets to predict.

    Like `pack_windows`, but the input at t is token t, or 0 if token t is masked. Masked tokens are the targets; other
    positions have target 0 and weight 0. Source: Devlin et al. 2019, "BERT", section 3.1.
    Note: differs in that every masked token becomes id 0; BERT keeps or replaces one in five.

    Args:
        tokens, end_id, use_packing: see `pack_windows`.
        is_masked: bool (B, T).

    Returns:
        `(inputs, targets, weights)`; the inputs always have a "padding_mask".
    """
    inputs, tokens, is_token = pack_windows(tokens, end_id, use_packing)
    is_masked = np.asarray(is_masked) & (is_token > 0)
    inputs["token_ids"] = np.where(is_masked, 0, tokens)
    return inputs, np.where(is_masked, tokens, 0), is_masked.astype("float32")


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
    store: TokenStore, batch_size: int, sequence_length: int, use_packing: bool = True, max_windows: int | None = None
) -> Batches:
    """Cut a token store into consecutive segments that score every token once.

    Like `evaluation_batches`, but row b continues row b of the previous batch. A new or reset
    `tf_sparse_attention.models.StatefulModel` then has the preceding tokens in its segment memory as context.

    Args:
        store, batch_size, sequence_length, use_packing: see `segment_batches`.
        max_windows: maximum number of segments, the first of each row, in full batches. Default: None, all.

    Returns:
        `Batches` of `(inputs, targets, weights)`, see `segment_batches`.

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
    """Read segments from the positions `starts` (B,), which wrap around the end of the stream; see `segment_batches`.

    The epoch changes the document ids. All outputs are 0 from the positions `stop` (B,) on.
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
