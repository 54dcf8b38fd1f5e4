"""Tokens sorted by (group, position) where keys are tokens of their own: blocks on the merged order of both."""

from typing import NamedTuple, Self

from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement, Numbers
from tf_sparse_attention.ops.blocks import join, max_size, pad_axis, shape, split
from tf_sparse_attention.ops.gather import permute_rows, stable_order, take_numbers, take_rows, take_unique_rows
from tf_sparse_attention.ops.grid import window_grid
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.groups import NO_GROUP, groups_of_keys
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor


class MergedOrder(NamedTuple):
    """Queries and keys in one order, by (group, position, keys first), on M slots. All int32 (B, N, M) or bool.

    Attributes:
        positions: the token position at each slot.
        is_query: whether a slot holds a query.
        last_key: rank, in the order of the keys alone, of the last key at or before a slot; -1 before the first.
        query_slots: (B, N, T), the slot of each query.
    """

    positions: Tensor
    is_query: Tensor
    last_key: Tensor
    query_slots: Tensor


def merge_orders(query_groups: Tensor, key_groups: Tensor, queries_first: bool = False) -> MergedOrder:
    """Returns the `MergedOrder` of queries (B, N, T) and keys (B, N, S) by their groups.

    Args:
        query_groups: int32 (B, N, T).
        key_groups: int32 (B, N, S).
        queries_first: whether a query comes before the key of its position, and so does not see it.
    """
    batch, heads, num_queries = shape(query_groups)
    num_keys = shape(key_groups)[-1]
    length = max_size(num_queries, num_keys)
    pairs = [_lengthen(query_groups, length), _lengthen(key_groups, length)]
    pairs = ops.stack(pairs if queries_first else pairs[::-1], axis=-1)
    # Interleaved like this, a stable sort by group leaves the key of a position before its query, or after it.
    order, inverse = stable_order(ops.reshape(pairs, (batch, heads, 2 * length)))
    of_queries = 0 if queries_first else 1
    is_query = order % 2 == of_queries
    last_key = ops.cumsum(ops.cast(ops.logical_not(is_query), "int32"), axis=-1) - 1
    query_slots = ops.reshape(inverse, (batch, heads, length, 2))[:, :, :num_queries, of_queries]
    return MergedOrder(order // 2, is_query, last_key, query_slots)


def _lengthen(groups, length):
    """Returns groups with tokens of no group added at the end."""
    added = length - shape(groups)[-1]
    exists = pad_axis(ops.ones_like(groups, dtype="bool"), -1, 0, added)
    return ops.where(exists, pad_axis(groups, -1, 0, added), NO_GROUP)


class KeyBlocks(NamedTuple):
    """For each block of merged slots, the aligned blocks of sorted keys that its queries can see.

    Attributes:
        block_size: b, slots and keys in a block.
        num_slots: M.
        first: int32 (B, N, G), the block in the order of the keys that holds the first key passed by a block.
        before, after: blocks of keys taken before and after that one.
    """

    block_size: int
    num_slots: Size
    first: Tensor
    before: int
    after: int

    @classmethod
    def around(cls, merged: MergedOrder, cluster_size: int, causal: bool) -> Self:
        """Returns the blocks for a band of `cluster_size`.

        A block of b slots passes at most b keys, and the first of them is at most b - 1 into its own block.
        """
        size = window_grid(1, 1, cluster_size, causal).block_size
        num_slots = shape(merged.positions)[-1]
        passed = ops.cast(ops.logical_not(merged.is_query), "int32")
        num_blocks = (num_slots + size - 1) // size
        first = split(merged.last_key + 1 - passed, size, -1, num_blocks)[..., 0] // size
        last = 2 * size - 2 if causal else 2 * size + cluster_size - 3
        return cls(size, num_slots, first, -(-cluster_size // size), last // size)

    def slots(self, x: Tensor, axis: int) -> Tensor:
        """Returns the merged slots in blocks: (..., M, ...) to (..., G, t, ...)."""
        return split(x, self.block_size, axis, (self.num_slots + self.block_size - 1) // self.block_size)

    def rows(self, x: Tensor) -> Tensor:
        """Returns the rows of sorted keys beside each block: (B, M, S, H) to (B, N, G, s, H), zeros outside."""
        batch, heads, length, size = shape(x)
        num_blocks = (length + self.block_size - 1) // self.block_size
        x = split(x, self.block_size, -2, num_blocks + 1)  # the last block is empty: what lies outside is read there
        index = self._index()
        index = ops.where(ops.logical_and(index >= 0, index < num_blocks), index, num_blocks)
        x = ops.reshape(x, (batch, heads, num_blocks + 1, self.block_size * size))
        x = take_rows(x, ops.reshape(index, (batch, self.first.shape[1], -1)))
        return ops.reshape(x, (*shape(self.first), self._width, size))

    def numbers(self, x: Tensor) -> Tensor:
        """Returns int32 (B, M, S) of sorted keys beside each block, (B, N, G, s), zeros outside."""
        return self.rows(x[..., None])[..., 0]

    def ranks(self) -> Tensor:
        """Returns the rank of each key beside each block, int32 (B, N, G, s)."""
        ranks = self._index()[..., None] * self.block_size + ops.arange(self.block_size, dtype="int32")
        return ops.reshape(ranks, (*shape(self.first), self._width))

    @property
    def _width(self):
        return (self.before + 1 + self.after) * self.block_size

    def _index(self):
        return self.first[..., None] + ops.arange(-self.before, self.after + 1, dtype="int32")


class MergedGrid(Arrangement):
    """Queries and keys by (group, position, keys first), in blocks, each beside the aligned blocks of sorted keys.

    Blocks are cut on the merged order of queries and keys, so that a block of b slots passes at most b keys and needs
    a fixed number of aligned key blocks. Half of the slots hold keys and are computed for nothing: 3 to 4 times the
    cost of `SortedGrid`.

    Args:
        known: pair of dictionaries of what is known of queries and keys, with "group", int32 (B or 1, N, T) and
            (B or 1, M, S) of `groups_of`. Keys are sorted once for the query heads that share them, and each of these
            has blocks of its own beside them.
        batch: B, an integer or a scalar tensor.
        band: keys of a group that a query sees on a side, counting the one at its position.
        causal: whether later keys are hidden.
        lead: 0, or -1 where a query sees the keys before its position alone, see `Arrangement`.
    """

    keeps_token_masks = True
    sorts_tokens = True

    def __init__(self, known: Numbers, batch: Size, band: int, causal: bool, lead: int = 0) -> None:
        query_groups, key_groups = (x["group"] for x in known)
        (_, heads, self._num_queries), (_, key_heads, num_keys) = shape(query_groups), shape(key_groups)
        self._known = known
        self._sizes = {"queries": (batch, heads, self._num_queries), "keys": (batch, key_heads, num_keys)}
        query_groups = ops.broadcast_to(query_groups, self._sizes["queries"])
        key_groups = ops.broadcast_to(key_groups, self._sizes["keys"])
        merged = query_groups, repeat_key_heads(key_groups, heads)
        self._merged = merge_orders(*merged, queries_first=lead < 0)
        self._blocks = KeyBlocks.around(self._merged, band, causal)
        self._key_order, self._key_inverse = stable_order(key_groups)
        self._rows = ops.minimum(self._merged.positions, self._num_queries - 1)
        # Those of queries are of the last key at or before them. (..., t, 1) and (..., 1, s)
        self._query_ranks = self._blocks.slots(self._merged.last_key, -1)[..., None]
        self._key_ranks = self._blocks.ranks()[..., None, :]
        self.key_length, self.lead = num_keys, lead

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            x = ops.broadcast_to(x, self._sizes["queries"])
            return self._blocks.slots(take_numbers(x, self._rows), -1)
        # Rows in the slots of keys are read for nothing: no output is taken from them, so the gradient may skip them.
        return self._blocks.slots(take_unique_rows(x, self._rows, self._merged.query_slots), -2)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            return self._blocks.numbers(take_numbers(ops.broadcast_to(x, self._sizes["keys"]), self._key_order))
        return self._blocks.rows(permute_rows(x, self._key_order, self._key_inverse))

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        merged = self._merged
        present = ops.logical_and(merged.is_query, merged.positions < self._num_queries)
        return take_unique_rows(join(x, axis, self._blocks.num_slots), merged.query_slots, self._rows, present)

    def query_positions(self) -> Tensor:
        return self._blocks.slots(self._merged.positions, -1)

    def key_positions(self) -> Tensor:
        return self._blocks.numbers(self._key_order)

    def known(self, numbers: Numbers) -> Numbers:
        if numbers is not self._known:
            return super().known(numbers)
        query_groups, key_groups = (x["group"] for x in numbers)
        own, other = super().known(({"group": query_groups}, {"group": groups_of_keys(key_groups)}))
        return {**own, "rank": self._query_ranks}, {**other, "rank": self._key_ranks}

    def order(self) -> tuple[Tensor, Tensor]:
        return self._query_ranks, self._key_ranks

    def distances(self) -> Distances:
        return Distances(ranks=self._key_ranks - self._query_ranks, tokens=self.apart())
