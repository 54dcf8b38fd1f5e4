"""Attention to blocks of keys that are compressed to one key and one value each, and the choice of blocks by it."""

from collections.abc import Mapping
from typing import Any

from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, apply_sinks
from tf_sparse_attention.ops.blocks import shape, split
from tf_sparse_attention.ops.grouped_heads import attend_heads, repeat_key_heads
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.selected_blocks import BlockKeys, best_of, num_choices, sum_groups
from tf_sparse_attention.types import Tensor


def visible_blocks(
    blocks: BlockKeys, positions: Tensor, segments: Tensor | None, attention_mask: Tensor | None
) -> Tensor:
    """Returns which compressed blocks queries see, bool (B or 1, N or 1, T, G).

    Those that are complete at the position of the query, whose last token is of its document, and all of whose keys
    that count it may see by an attention mask.

    Args:
        blocks: the `BlockKeys` of the sequence.
        positions: int32 (T,), of the queries.
        segments: int (B, T), the document of each query; None where nothing is packed.
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1), or None.
    """
    seen = blocks.among_first((positions + 1) // blocks.block_size, segments)
    if attention_mask is None:
        return seen
    if attention_mask.shape[-1] == 1:
        return ops.logical_and(seen, attention_mask)
    pairs = split(attention_mask, blocks.block_size, -1, blocks.num_blocks)  # (B, N, T, G, b)
    if blocks.counted is not None:
        pairs = ops.logical_or(pairs, ops.logical_not(blocks.counted[:, None, None]))
    return merge(seen, ops.all(pairs, axis=-1))


def attend_compressed_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    dropout: Dropout | None = None,
) -> Attended:
    """Computes attention of queries to compressed blocks, O(T G) for each head.

    Args:
        query: scaled queries (B, N, T, H).
        key: (B, M, G, H); head n of the queries reads head n // (N / M).
        value: (B, M, G, Hv).
        seen: bool (B or 1, N or 1, T, G).
        soft_cap: as in `attend`.
        sinks: float (N,), a logit of each head without a value; or None.
        dropout: an `attend.Dropout`, or None.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros where a query sees no block, and the weights (B, N, T, G).
    """
    attended = attend_heads(
        query[:, :, None],
        key[:, :, None],
        value[:, :, None],
        mask=seen[:, :, None],
        soft_cap=soft_cap,
        dropout=dropout,
        return_weights=True,
        return_log_sum_exp=sinks is not None,
    )
    attended = Attended(*(None if x is None else x[:, :, 0] for x in attended))
    return attended if sinks is None else apply_sinks(attended, sinks)


def select_blocks_by_weight(
    query: Tensor, key: Tensor, seen: Tensor, allowed: Tensor, num_selected: int, options: Mapping[str, Any]
) -> list[Tensor]:
    """Returns the blocks of the largest weights, added up over the heads that share keys; without a gradient.

    Args:
        query: as in `attend_compressed_blocks`; so are `key` and `seen`.
        allowed: bool (B or 1, 1, T, G), which blocks can be chosen.
        num_selected: how many.
        options: `soft_cap` and `sinks` of `attend_compressed_blocks`.

    Returns:
        List of int32 (B, N, T), the heads that share keys with the same blocks; as `select_blocks` otherwise.
    """
    count = num_choices(shape(allowed)[-1], num_selected)
    if count == 0:
        return []
    # In float32, as weights of half precision would often be equal.
    query, key = (ops.cast(ops.stop_gradient(x), "float32") for x in (query, key))
    weights = attend_compressed_blocks(query, key, key, seen, **options).weights
    chosen = best_of(sum_groups(weights, key.shape[1]), allowed, count)
    return [repeat_key_heads(each, query.shape[1]) for each in chosen]
