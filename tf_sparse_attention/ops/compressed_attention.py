"""Compressed attention (native sparse attention): one key and value per block, and selection of blocks by weight."""

from collections.abc import Mapping
from typing import Any

from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, apply_sinks, attend_heads
from tf_sparse_attention.ops.block_selection import BlockKeys, num_selectable, sum_groups, top_blocks
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import repeat_key_heads, shape, split
from tf_sparse_attention.types import Tensor


def visible_blocks(
    blocks: BlockKeys, positions: Tensor, segments: Tensor | None, attention_mask: Tensor | None
) -> Tensor:
    """Return the mask of compressed blocks that queries may attend to, bool (B or 1, N or 1, T, G).

    A block is visible if it is complete at the position of the query, its last token is in the same document, and the
    attention mask allows all of its unmasked keys.

    Args:
        blocks: the `BlockKeys` of the sequence.
        positions: int32 (T,), positions of the queries.
        segments: int (B, T), the document of each query; None without packed documents.
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1), or None.
    """
    mask = blocks.among_first((positions + 1) // blocks.block_size, segments)
    if attention_mask is None:
        return mask
    if attention_mask.shape[-1] == 1:
        return ops.logical_and(mask, attention_mask)
    pairs = split(attention_mask, blocks.block_size, -1, blocks.num_blocks)  # (B, N, T, G, b)
    if blocks.counted is not None:
        pairs = ops.logical_or(pairs, ops.logical_not(blocks.counted[:, None, None]))
    return merge(mask, ops.all(pairs, axis=-1))


def attend_compressed_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Attended:
    """Compute attention of queries to compressed blocks, O(T G) per head.

    Args:
        query: scaled queries (B, N, T, H).
        key: (B, M, G, H). Query head n uses key head n // (N / M).
        value: (B, M, G, Hv).
        mask: bool (B or 1, N or 1, T, G).
        soft_cap: as in `attend`.
        sinks: float (N,), the sink logit of each head, or None.
        dropout: an `attend.Dropout`, or None.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros for queries without a visible block, and weights (B, N, T, G).
    """
    attended = attend_heads(
        query[:, :, None],
        key[:, :, None],
        value[:, :, None],
        mask=mask[:, :, None],
        soft_cap=soft_cap,
        dropout=dropout,
        return_weights=True,
        return_log_sum_exp=sinks is not None,
    )
    attended = Attended(*(None if x is None else x[:, :, 0] for x in attended))
    return attended if sinks is None else apply_sinks(attended, sinks)


def select_blocks_by_weight(
    query: Tensor, key: Tensor, mask: Tensor, allowed: Tensor, num_selected: int, options: Mapping[str, Any]
) -> Tensor | None:
    """Select the blocks with the largest weights, summed over the heads of a group; without a gradient.

    Args:
        query, key, mask: as in `attend_compressed_blocks`.
        allowed: bool (B or 1, 1, T, G), blocks that can be selected.
        num_selected: number of blocks.
        options: `soft_cap` and `sinks` of `attend_compressed_blocks`.

    Returns:
        Int32 (B, N, T, R) as from `select_blocks`, equal for the heads of a group; None instead of R = 0.
    """
    count = num_selectable(shape(allowed)[-1], num_selected)
    if count == 0:
        return None
    # float32: weights in half precision are often equal.
    query, key = (ops.cast(ops.stop_gradient(x), "float32") for x in (query, key))
    weights = attend_compressed_blocks(query, key, key, mask, **options).weights
    return repeat_key_heads(top_blocks(sum_groups(weights, key.shape[1]), allowed, count), query.shape[1])
