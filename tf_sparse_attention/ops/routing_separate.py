"""Routing by the nearest centroid with keys of their own: blocks on the merged order of queries and keys."""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.blocks import join, pad_axis, shape, split
from tf_sparse_attention.ops.gather import permute_rows, pick_rows, stable_order, take_numbers, take_rows
from tf_sparse_attention.ops.groups import NOWHERE, with_self_bias
from tf_sparse_attention.ops.local import window_grid
from tf_sparse_attention.ops.masks import TokenMasks, merge, pick_pairs
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.scores import dense_scores


class Merged(NamedTuple):
    """Queries and keys in one order, by (group, position, keys first), on M places. All int32 (B, N, M) or bool.

    Attributes:
        positions: the token position at each place.
        is_query: whether a place holds a query.
        last_key: rank, in the order of the keys alone, of the last key at or before a place; -1 before the first.
        query_places: (B, N, T), the place of each query.
    """

    positions: Any
    is_query: Any
    last_key: Any
    query_places: Any


def merge_orders(query_groups, key_groups):
    """Returns the `Merged` order of queries (B, N, T) and keys (B, N, S) by their groups."""
    batch, heads, num_queries = shape(query_groups)
    num_keys = shape(key_groups)[-1]
    static = isinstance(num_queries, int) and isinstance(num_keys, int)
    length = max(num_queries, num_keys) if static else ops.maximum(num_queries, num_keys)
    pairs = ops.stack([_lengthen(key_groups, length), _lengthen(query_groups, length)], axis=-1)
    # Interleaved like this, a stable sort by group leaves the key of a position before its query.
    order, inverse = stable_order(ops.reshape(pairs, (batch, heads, 2 * length)))
    is_query = order % 2 == 1
    last_key = ops.cumsum(ops.cast(ops.logical_not(is_query), "int32"), axis=-1) - 1
    query_places = ops.reshape(inverse, (batch, heads, length, 2))[:, :, :num_queries, 1]
    return Merged(order // 2, is_query, last_key, query_places)


def _lengthen(groups, length):
    """Returns groups with tokens of no group added at the end."""
    added = length - shape(groups)[-1]
    exists = pad_axis(ops.ones_like(groups, dtype="bool"), -1, 0, added)
    return ops.where(exists, pad_axis(groups, -1, 0, added), NOWHERE)


class KeyBlocks(NamedTuple):
    """For each block of merged places, the aligned blocks of sorted keys that its queries can see.

    Attributes:
        block_size: b, places and keys in a block.
        num_places: M.
        first: int32 (B, N, G), the block in the order of the keys that holds the first key passed by a block.
        before, after: blocks of keys taken before and after that one.
    """

    block_size: int
    num_places: Any
    first: Any
    before: int
    after: int

    @classmethod
    def around(cls, merged, cluster_size, causal):
        """Returns the blocks for a band of `cluster_size`.

        A block of b places passes at most b keys, and the first of them is at most b - 1 into its own block.
        """
        size = window_grid(1, 1, cluster_size, causal).block_size
        num_places = shape(merged.positions)[-1]
        passed = ops.cast(ops.logical_not(merged.is_query), "int32")
        num_blocks = (num_places + size - 1) // size
        first = split(merged.last_key + 1 - passed, size, -1, num_blocks)[..., 0] // size
        last = 2 * size - 2 if causal else 2 * size + cluster_size - 3
        return cls(size, num_places, first, -(-cluster_size // size), last // size)

    def places(self, x, axis):
        """Returns the merged places in blocks: (..., M, ...) to (..., G, t, ...)."""
        return split(x, self.block_size, axis, (self.num_places + self.block_size - 1) // self.block_size)

    def rows(self, x):
        """Returns the rows of sorted keys beside each block: (B, N, S, H) to (B, N, G, s, H), zeros outside."""
        batch, heads, length, size = shape(x)
        num_blocks = (length + self.block_size - 1) // self.block_size
        x = split(x, self.block_size, -2, num_blocks + 1)  # the last block is empty: what lies outside is read there
        index = self._index()
        index = ops.where(ops.logical_and(index >= 0, index < num_blocks), index, num_blocks)
        x = ops.reshape(x, (batch, heads, num_blocks + 1, self.block_size * size))
        x = take_rows(x, ops.reshape(index, (batch, heads, -1)))
        return ops.reshape(x, (*shape(self.first), self._width, size))

    def numbers(self, x):
        """Returns int32 (B, N, S) of sorted keys beside each block, (B, N, G, s), zeros outside."""
        return self.rows(x[..., None])[..., 0]

    def ranks(self):
        """Returns the rank of each key beside each block, int32 (B, N, G, s)."""
        ranks = self._index()[..., None] * self.block_size + ops.arange(self.block_size, dtype="int32")
        return ops.reshape(ranks, (*shape(self.first), self._width))

    @property
    def _width(self):
        return (self.before + 1 + self.after) * self.block_size

    def _index(self):
        return self.first[..., None] + ops.arange(-self.before, self.after + 1, dtype="int32")


def separate_attention(
    query,
    key,
    value,
    query_groups,
    key_groups,
    cluster_size,
    causal=True,
    mask_self=False,
    masks=TokenMasks(),
    position=NoPosition(),
    dropout=None,
    **returns,
):
    """Computes attention inside clusters where queries and keys differ, in O(T cluster_size).

    A query sees the last `cluster_size` KEYS of its group up to its position, and if not causal the
    `cluster_size` - 1 next ones. Blocks are cut on the merged order of queries and keys, so that a block of b places
    passes at most b keys and needs a fixed number of aligned key blocks. Half of the places hold keys and are computed
    for nothing: 3 to 4 times the cost of `nearest_attention`.

    Args:
        query: normalised queries (B, N, T, H).
        key: normalised keys (B, N, S, H).
        value: values (B, N, S, Hv).
        query_groups: int32 (B, N, T) of `groups.groups_of`.
        key_groups: int32 (B, N, S).
        cluster_size: keys of a group that a query sees on a side, counting the one at its position.
        causal: whether later keys are hidden.
        mask_self: whether a query sees the key of its own position only when nothing else is in its band.
        masks: a `TokenMasks`, of which only `attention_mask` is used: the rest is in the groups.
        position: a position object of `ops.positions`; its table goes by rank among the keys.
        dropout: an `attend.Dropout`, or None.
        **returns: `return_weights` and `return_log_sum_exp` of `attend`.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros where a query sees nothing, and, if asked for, the dense weights
        (B, N, T, S) and the log-sum-exp (B, N, T).
    """
    num_queries, num_keys = shape(query)[-2], shape(key)[-2]
    merged = merge_orders(query_groups, key_groups)
    blocks = KeyBlocks.around(merged, cluster_size, causal)
    key_order, key_inverse = stable_order(key_groups)
    rows = ops.minimum(merged.positions, num_queries - 1)
    # Rows at places of keys are read for nothing: no output is taken from them, so the gradient may skip them.
    query = pick_rows(position.rotate(query, ops.arange(num_queries)), rows, merged.query_places)
    query = blocks.places(query, -2)  # (B, N, G, t, H)
    key = permute_rows(position.rotate(key, ops.arange(num_keys)), key_order, key_inverse)
    at_queries, at_keys = blocks.places(merged.positions, -1), blocks.numbers(key_order)
    ranks = blocks.ranks()[..., None, :] - blocks.places(merged.last_key, -1)[..., None]
    tokens = at_keys[..., None, :] - at_queries[..., None]
    seen = ops.where(key_groups == NOWHERE, 0, key_groups)  # 0, as outside: equal to no query's group
    own_groups = blocks.places(take_numbers(query_groups, rows), -1)
    same = own_groups[..., None] == blocks.numbers(take_numbers(seen, key_order))[..., None, :]
    in_band = ops.logical_and(ranks > -cluster_size, ranks <= 0 if causal else ranks < cluster_size)
    distances = Distances(ranks=ranks, tokens=tokens)
    bias = position.score_bias(query, distances)
    if mask_self:
        bias = with_self_bias(bias, tokens == 0)
    attended = attend(
        query,
        blocks.rows(key),
        blocks.rows(permute_rows(value, key_order, key_inverse)),
        mask=merge(same, in_band, pick_pairs(masks.attention_mask, at_queries, at_keys)),
        bias=bias,
        dropout=None if dropout is None else dropout.by_position(at_queries, at_keys),
        value_bias=position.value_bias(distances),
        **returns,
    )
    present = ops.logical_and(merged.is_query, merged.positions < num_queries)
    return attended.restored(
        rows=lambda x: pick_rows(join(x, -2, blocks.num_places), merged.query_places, rows, present),
        dense=lambda weights: dense_scores(weights, at_keys[..., None, :], num_keys),
    )
