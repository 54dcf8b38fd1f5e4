"""Boolean masks (True = may attend): merging them, picking them at sparse places, and dense ones from positions."""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.blocks import shape

MOST_AXES = 4  # that broadcast in a logical operation of LiteRT


class TokenMasks(NamedTuple):
    """What a call says about which tokens count and which pairs may attend. Every field may be None: no limit.

    Attributes:
        query_mask: bool (B, T). A query masked out gives zeros.
        key_mask: bool (B, S). A key masked out does not exist: it takes no place in a cluster.
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1). A pair masked out keeps its place.
        query_segments: int (B, T), the document of each query; tokens attend within their document.
        key_segments: int (B, S).
        num_memory: keys before the position of the first query, an integer: those of earlier text.
        global_counts: int or bool (B, T), how often each token counts as a key of all queries, zero for most.
    """

    query_mask: Any = None
    key_mask: Any = None
    attention_mask: Any = None
    query_segments: Any = None
    key_segments: Any = None
    num_memory: int = 0
    global_counts: Any = None

    def of_heads(self, heads):
        """Returns the masks of some of the heads, a slice of theirs."""
        return self._replace(attention_mask=mask_of_heads(self.attention_mask, heads))


def merge(*masks):
    """Returns the logical and of all masks that are not None, or None."""
    merged = None
    for mask in masks:
        if mask is not None:
            merged = mask if merged is None else _and(merged, mask)
    return merged


def _and(first, second):
    """Returns `ops.logical_and`, with neighbouring axes that broadcast alike as one where the sizes are known."""
    rank = max(len(first.shape), len(second.shape))
    sizes = [(1,) * (rank - len(x.shape)) + tuple(x.shape) for x in (first, second)]
    if rank <= MOST_AXES or sizes[0] == sizes[1] or None in sizes[0] + sizes[1]:
        return ops.logical_and(first, second)
    result, joined, last = [], [], None
    for pair in zip(*sizes, strict=True):
        result.append(max(pair))
        spread = tuple(size == 1 for size in pair)
        if not all(spread):
            if spread == last:
                pair = tuple(size * more for size, more in zip(joined.pop(), pair, strict=True))
            joined, last = [*joined, pair], spread
    first, second = (ops.reshape(x, axes) for x, axes in zip((first, second), zip(*joined, strict=True), strict=True))
    return ops.reshape(ops.logical_and(first, second), result)


def with_heads(attention_mask):
    """Returns an attention mask of rank 2 (T, S), 3 (B, T, S) or 4 as bool of rank 4, broadcastable to (B, N, T, S)."""
    if attention_mask is None:
        return None
    mask = ops.cast(attention_mask, "bool")
    rank = len(mask.shape)
    if rank == 2:
        return mask[None, None]
    return mask[:, None] if rank == 3 else mask


def mask_of_heads(attention_mask, heads):
    """Returns the part of an attention mask that is for some heads.

    Args:
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1), or None.
        heads: slice of the N heads, with an end where the number of heads is not known in a graph.
    """
    if attention_mask is None:
        return None
    size = shape(attention_mask)[1]
    if isinstance(size, int):
        return attention_mask if size == 1 else attention_mask[:, heads]
    numbers = range(heads.stop)[heads]
    return ops.take(attention_mask, ops.minimum(ops.convert_to_tensor(numbers, "int32"), size - 1), axis=1)


def pick_pairs(attention_mask, query_positions, key_positions):
    """Reads an attention mask at pairs of positions, without expanding it.

    Args:
        attention_mask: bool (B or 1, N or 1, T or 1, S or 1), or None.
        query_positions: int (..., t) with leading axes (G,), (1 or B, 1 or N, G). Positions outside are clipped.
        key_positions: int (..., s), likewise.

    Returns:
        Bool (1 or B, 1 or N, G, t or 1, s or 1), or None.
    """
    if attention_mask is None:
        return None
    batch, heads, num_queries, num_keys = shape(attention_mask)
    index = ops.reshape(_offsets(batch) * heads, (-1, 1, 1, 1, 1)) + ops.reshape(_offsets(heads), (-1, 1, 1, 1))
    index = index * num_queries
    if not _is_one(num_queries):
        index = index + ops.clip(query_positions, 0, num_queries - 1)[..., :, None]
    index = index * num_keys
    if not _is_one(num_keys):
        index = index + ops.clip(key_positions, 0, num_keys - 1)[..., None, :]
    return ops.take(ops.reshape(attention_mask, (-1,)), index, axis=0)


def _offsets(size):
    return ops.arange(size, dtype="int32")


def _is_one(size):
    return isinstance(size, int) and size == 1


def causal_mask(query_length, key_length):
    """Returns the dense causal mask j <= i, bool (T, S)."""
    return _differences(query_length, key_length) <= 0


def window_mask(query_length, key_length, window, causal, num_memory=0):
    """Returns the dense sliding window, bool (T, S): 0 <= i - j < window if causal, otherwise |i - j| < window.

    The first `num_memory` keys are at the positions before the first query.
    """
    difference = _differences(query_length, key_length) - num_memory
    near = difference > -window
    return ops.logical_and(near, difference <= 0 if causal else difference < window)


def block_mask(
    query_length,
    key_length,
    block_size,
    num_blocks_before,
    num_blocks_after,
    causal,
    num_memory=0,
    key_block_size=None,
):
    """Returns the dense mask of local blocks, bool (T, S).

    Query i in block g = i // block_size sees the keys of the blocks g - before .. g + after, up to itself if causal.
    The first `num_memory` keys are at the positions before the first query, in blocks of negative numbers. Blocks of
    keys may have a size of their own.
    """
    query_blocks = _offsets(query_length)[:, None] // block_size
    key_blocks = (_offsets(key_length)[None, :] - num_memory) // (key_block_size or block_size)
    difference = key_blocks - query_blocks
    mask = ops.logical_and(difference >= -num_blocks_before, difference <= num_blocks_after)
    return ops.logical_and(mask, _differences(query_length, key_length) <= num_memory) if causal else mask


def stride_mask(query_length, key_length, stride, causal):
    """Returns the dense mask of every `stride`-th key, bool (T, S): (i - j) mod stride = 0, and j <= i if causal."""
    difference = _differences(query_length, key_length)
    mask = difference % stride == 0
    return ops.logical_and(mask, difference <= 0) if causal else mask


def summary_mask(query_length, key_length, block_size, first, count, causal):
    """Returns the dense mask of the summary columns of every block, bool (T, S).

    Query i sees the keys j with first <= j mod block_size < first + count, and j <= i if causal.
    """
    column = _offsets(key_length)[None, :] % block_size
    mask = ops.logical_and(column >= first, column < first + count)
    mask = ops.broadcast_to(mask, (query_length, key_length))
    return ops.logical_and(mask, causal_mask(query_length, key_length)) if causal else mask


def group_band_mask(query_groups, key_groups, band, causal, key_mask=None):
    """Returns the dense mask of a band inside groups, bool (..., T, S): the twin of routing by the nearest centroid.

    Query i sees the last `band` keys of its group at or before position i, and, if not causal, the `band` - 1 next
    ones. Keys that `key_mask` excludes are not counted.

    Args:
        query_groups: int (..., T), the group (cluster, document) of each query.
        key_groups: int (..., S).
        band: keys on a side, counting the one at the query's own position.
        causal: whether keys after the query are excluded.
        key_mask: bool, broadcastable to (..., S), or None.
    """
    same = query_groups[..., :, None] == key_groups[..., None, :]
    if key_mask is not None:
        same = ops.logical_and(same, key_mask[..., None, :])
    sizes = shape(same)
    past = causal_mask(sizes[-2], sizes[-1])
    count = ops.cumsum(ops.cast(same, "int32"), axis=-1)  # keys of the group up to j, itself included
    reached = ops.max(ops.where(past, count, 0), axis=-1, keepdims=True)  # keys of the group up to i
    mask = ops.logical_and(same, count > reached - band)
    return ops.logical_and(mask, past if causal else count < reached + band)


def chunk_mask(query_groups, key_groups, chunk_size, causal, query_mask=None, key_mask=None):
    """Returns the dense mask of chunks of the tokens by (group, position), bool (..., T, S).

    A token is in chunk c = rank // `chunk_size` of a round. A query sees the keys of the chunks c and c - 1, one in
    chunk 0 those of the last chunk of the round before (of the last round, in round 0).

    Args:
        query_groups: list of R int (..., T), the group of each query in each round.
        key_groups: list of R int (..., S).
        chunk_size: tokens in a chunk.
        causal: whether keys after the query are excluded.
        query_mask: bool, broadcastable to (..., T), queries that exist, or None; others must be in the largest group.
        key_mask: bool, broadcastable to (..., S), likewise.
    """
    own, other = ([_group_ranks(x) // chunk_size for x in groups] for groups in (query_groups, key_groups))
    exists = ops.ones_like(key_groups[0], dtype="bool")
    exists = exists if key_mask is None else ops.logical_and(exists, key_mask)
    count = ops.sum(ops.cast(exists, "int32"), axis=-1, keepdims=True)
    last = ops.maximum(count - 1, 0) // chunk_size
    seen = ops.zeros((), dtype="bool")
    for number, (queries, keys) in enumerate(zip(own, other, strict=True)):
        back = queries[..., :, None] - keys[..., None, :]
        round_before = ops.logical_and(queries[..., :, None] == 0, (other[number - 1] == last)[..., None, :])
        for shown in (back == 0, back == 1, round_before):
            seen = ops.logical_or(seen, shown)
    past = causal_mask(*shape(seen)[-2:]) if causal else None
    return merge(seen, exists[..., None, :], None if query_mask is None else query_mask[..., :, None], past)


def _group_ranks(groups):
    """Returns how many tokens come before each by (group, position), int32 (..., T), from all pairs of them."""
    own, other = groups[..., :, None], groups[..., None, :]
    length = shape(groups)[-1]
    earlier = _differences(length, length) < 0
    before = ops.logical_or(other < own, ops.logical_and(other == own, earlier))
    return ops.sum(ops.cast(before, "int32"), axis=-1)


def self_only_when_alone(mask):
    """Returns a dense mask (..., T, T) in which a token sees itself only if it may see itself and nothing else."""
    own = ops.eye(mask.shape[-1], dtype="bool")
    others = ops.logical_and(mask, ops.logical_not(own))
    alone = ops.logical_not(ops.any(others, axis=-1, keepdims=True))
    return ops.logical_or(others, ops.logical_and(mask, ops.logical_and(own, alone)))


def dense_mask(pattern, masks):
    """Merges a dense pattern with the masks of a call.

    Args:
        pattern: bool, broadcastable to (B, N, T, S); None for all pairs.
        masks: a `TokenMasks`.

    Returns:
        Bool, broadcastable to (B, N, T, S); None where everything is allowed.
    """
    segments = None
    if masks.query_segments is not None:
        segments = (masks.query_segments[:, :, None] == masks.key_segments[:, None, :])[:, None]
    queries = None if masks.query_mask is None else masks.query_mask[:, None, :, None]
    keys = None if masks.key_mask is None else masks.key_mask[:, None, None, :]
    return merge(pattern, segments, queries, keys, masks.attention_mask)


def _differences(query_length, key_length):
    return _offsets(key_length)[None, :] - _offsets(query_length)[:, None]
