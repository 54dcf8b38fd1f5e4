"""Local attention: each query sees its own block and its neighbours, or an exact sliding window."""

from keras import ops

from tf_sparse_attention.ops.arranged import attend_arranged
from tf_sparse_attention.ops.attend import Slots
from tf_sparse_attention.ops.blocks import Grid, shape
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import NoPosition, rotate_both


def window_grid(query_length, key_length, window, causal, lead=0):
    """Returns the `Grid` that covers an exact window at the least cost, whatever block size a user has in mind.

    Half the window to a block, between 16 and 128: smaller blocks waste fewer keys outside the band, larger ones make
    larger matrix products. A window of 256 computes 384 key places a query.
    """
    block_size = 16
    while block_size < 128 and 2 * block_size < window:
        block_size *= 2
    before = -(-(window - 1) // block_size)
    return Grid(query_length, key_length, block_size, before, 0 if causal else before, lead)


def block_grid(
    query_length, key_length, block_size, num_blocks_before, num_blocks_after, causal, lead=0, key_block_size=None
):
    """Returns the `Grid` of local blocks; a sequence known to be shorter than a block is one block of its own."""
    if key_block_size not in (None, block_size):
        return Grid(query_length, key_length, block_size, num_blocks_before, num_blocks_after, lead, key_block_size)
    known = isinstance(query_length, int) and isinstance(key_length, int)
    if known and lead == 0 and max(query_length, key_length) <= block_size:
        return Grid(query_length, key_length, max(query_length, key_length), 0, 0)
    return Grid(query_length, key_length, block_size, num_blocks_before, 0 if causal else num_blocks_after, lead)


def band(offsets, window, causal, see_self=True):
    """Returns the constant mask (t, s) of the offsets that a window and causality allow, None if they allow all."""
    allowed = offsets <= 0 if causal else offsets == offsets
    if window is not None:
        allowed = allowed & (abs(offsets) < window)
    if not see_self:
        allowed = allowed & (offsets != 0)
    return None if allowed.all() else ops.convert_to_tensor(allowed)


def local_attention(
    query,
    key,
    value,
    block_size=256,
    num_blocks_before=1,
    num_blocks_after=1,
    window=None,
    causal=False,
    see_self=True,
    masks=TokenMasks(),
    position=NoPosition(),
    slots=None,
    key_block_size=None,
    **options,
):
    """Computes local attention in O(T (window + block)) time and memory; no (T, S) array is formed.

    Blocks: query i of block g = i // block_size sees the keys of the blocks g - before .. g + after, up to itself if
    causal (Roy et al. 2021, section 3). Window: the keys with 0 <= i - j < window if causal, |i - j| < window
    otherwise. Positions count from the start of both sequences, which may differ in length; the keys of earlier text,
    of which `masks.num_memory` tells the number, come before.

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, N, S, H).
        value: values (B, N, S, Hv).
        block_size: positions in a block; ignored with a window, for which the best one is chosen.
        num_blocks_before: blocks seen before the own one.
        num_blocks_after: blocks seen after the own one; none if causal.
        window: positions, counting the query's own, or None for blocks.
        causal: whether later keys are hidden.
        see_self: whether a query sees the key of its own position.
        masks: a `TokenMasks`; its `query_mask` is not used here.
        position: a position object of `ops.positions`.
        key_block_size: positions in a block of keys, of which block g goes with block g of the queries; not if causal.
            None: `block_size`.
        slots: pair of keys (N, M, H) and values (N, M, Hv) that every query sees, without positions; or None.
        **options: `span` of `attend_arranged`; `dropout`, `return_weights` and `return_log_sum_exp` of `attend`.

    Returns:
        An `Attended` of the sequence: the output (B, N, T, Hv), zeros where a query has nothing to attend to, and, if
        asked for, the weights (B, N, T, S) and the log-sum-exp (B, N, T).
    """
    lengths = shape(query)[-2], shape(key)[-2]
    if window is None:
        around = num_blocks_before, num_blocks_after
        grid = block_grid(*lengths, block_size, *around, causal, masks.num_memory, key_block_size)
    else:
        grid = window_grid(*lengths, window, causal, masks.num_memory)
    if slots is not None:
        options["slots"] = Slots(*slots)._replace(query=grid.queries(query, -2))  # they have no position to turn
    query, key = rotate_both(position, query, key, masks.num_memory)
    pattern = None if grid.offsets is None else band(grid.offsets, window, causal, see_self)
    return attend_arranged(grid, query, key, value, pattern, masks, position, **options)
