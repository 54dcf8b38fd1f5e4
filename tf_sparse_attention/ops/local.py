"""Local attention: each query sees its own block and its neighbours, or an exact sliding window."""

from keras import ops

from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.blocks import Grid, shape
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.scores import dense_scores


def window_grid(query_length, key_length, window, causal):
    """Returns the `Grid` that covers an exact window at the least cost, whatever block size a user has in mind.

    Half the window to a block, between 16 and 128: smaller blocks waste fewer keys outside the band, larger ones make
    larger matrix products. A window of 256 computes 384 key places a query.
    """
    block_size = 16
    while block_size < 128 and 2 * block_size < window:
        block_size *= 2
    before = -(-(window - 1) // block_size)
    return Grid(query_length, key_length, block_size, before, 0 if causal else before)


def block_grid(query_length, key_length, block_size, num_blocks_before, num_blocks_after, causal):
    """Returns the `Grid` of local blocks; a sequence known to be shorter than a block is one block of its own."""
    known = isinstance(query_length, int) and isinstance(key_length, int)
    if known and max(query_length, key_length) <= block_size:
        return Grid(query_length, key_length, max(query_length, key_length), 0, 0)
    return Grid(query_length, key_length, block_size, num_blocks_before, 0 if causal else num_blocks_after)


def band(offsets, window, causal):
    """Returns the constant mask (t, s) of the offsets that a window and causality allow, None if they allow all."""
    allowed = offsets <= 0 if causal else offsets == offsets
    if window is not None:
        allowed = allowed & (abs(offsets) < window)
    return None if allowed.all() else ops.convert_to_tensor(allowed)


def local_mask(grid, window, causal, masks):
    """Returns which key places a query may attend to, bool broadcastable to (B, N, G, t, s)."""
    segments = keys = None
    if masks.query_segments is not None:
        own = grid.queries(masks.query_segments, -1)[:, None, :, :, None]
        segments = own == grid.keys(masks.key_segments, -1)[:, None, :, None, :]
    if masks.key_mask is not None:
        keys = grid.keys(masks.key_mask, -1)[:, None, :, None, :]
    picked = pick_pairs(masks.attention_mask, grid.query_positions(), grid.key_positions())
    return merge(band(grid.offsets, window, causal), grid.inside(), keys, segments, picked)


def local_attention(
    query,
    key,
    value,
    block_size=256,
    num_blocks_before=1,
    num_blocks_after=1,
    window=None,
    causal=False,
    masks=TokenMasks(),
    position=NoPosition(),
    dropout=None,
    return_weights=False,
):
    """Computes local attention in O(T (window + block)) time and memory; no (T, S) array is formed.

    Blocks: query i of block g = i // block_size sees the keys of the blocks g - before .. g + after, up to itself if
    causal (Roy et al. 2021, section 3). Window: the keys with 0 <= i - j < window if causal, |i - j| < window
    otherwise. Positions count from the start of both sequences, which may differ in length.

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, N, S, H).
        value: values (B, N, S, Hv).
        block_size: positions in a block; ignored with a window, for which the best one is chosen.
        num_blocks_before: blocks seen before the own one.
        num_blocks_after: blocks seen after the own one; none if causal.
        window: positions, counting the query's own, or None for blocks.
        causal: whether later keys are hidden.
        masks: a `TokenMasks`; its `query_mask` is not used here.
        position: a position object of `ops.positions`.
        dropout: an `attend.Dropout`, or None.
        return_weights: whether to return dense weights as well.

    Returns:
        Pair of the output (B, N, T, Hv), zeros where a query has nothing to attend to, and the weights (B, N, T, S)
        or None.
    """
    lengths = shape(query)[-2], shape(key)[-2]
    if window is None:
        grid = block_grid(*lengths, block_size, num_blocks_before, num_blocks_after, causal)
    else:
        grid = window_grid(*lengths, window, causal)
    query = grid.queries(position.rotate(query, ops.arange(lengths[0])), -2)  # (B, N, G, t, H)
    key = position.rotate(key, ops.arange(lengths[1]))
    distances = Distances(offsets=grid.offsets)
    attended = attend(
        query,
        grid.keys(key, -2),
        grid.keys(value, -2),
        mask=local_mask(grid, window, causal, masks),
        bias=position.score_bias(query, distances),
        dropout=dropout,
        value_bias=position.value_bias(distances),
        return_weights=return_weights,
    )
    weights = None
    if return_weights:
        weights = grid.join(dense_scores(attended.weights, grid.key_positions()[:, None, :], lengths[1]), -2)
    return grid.join(attended.output, -2), weights
