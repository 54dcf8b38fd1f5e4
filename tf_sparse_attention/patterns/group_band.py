"""Attention within groups of tokens: the last keys of the query's group."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from keras import ops

from tf_sparse_attention.ops.gather import (
    NO_GROUP,
    mark_missing_keys,
    permute_rows,
    ring_positions,
    segment_ranks,
    stable_order,
    take_numbers,
    take_rows,
    take_slots,
    take_unique_rows,
    token_groups,
    write_slots,
)
from tf_sparse_attention.ops.kmeans import normalize
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import (
    fold_groups,
    in_range,
    join,
    max_size,
    min_if_known,
    pad_axis,
    repeat_key_heads,
    shape,
    shift_left,
    shift_right,
    split,
    unfold_groups,
)
from tf_sparse_attention.patterns.arrangement import Arrangement, window_grid
from tf_sparse_attention.patterns.cache_policies import (
    EMPTY,
    Buckets,
    CachePolicy,
    CrossCachePolicy,
    ReadKeys,
    find_position,
    is_full_size,
)
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import (
    Grouper,
    NewTokens,
    SelectedKeys,
    Selection,
    SelectionInputs,
    Selector,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class GroupBand(Pattern):
    """Base class of patterns that attend to the last `band` keys of the query's group.

    The last keys end at the query's position. Without a causal mask, queries also attend to the next `band` - 1 keys.
    If queries are used as keys, tokens are sorted by (group, position), and attention is a band in this order. The cost
    is O(T band) plus two integer sorts. If keys have their own projection, the cost is 3 to 4 times as high.

    A subclass defines `num_groups`, `band` and `make_selector(weights)`, which returns a `GroupSelector`.
    """

    content_based = True
    period = 1  # the mask rule has no positions

    @property
    def num_groups(self) -> int:
        """K, the number of groups."""
        raise NotImplementedError(f"{type(self).__name__} must define `num_groups`.")

    @property
    def band(self) -> int:
        """Number of keys per side that a query attends to in its group, including the key at its position."""
        raise NotImplementedError(f"{type(self).__name__} must define `band`.")

    @property
    def reach(self) -> int:
        return self.band - 1

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        # No difference of ranks: it would be an integer array of all pairs.
        return query.group == key.group, key.rank > query.rank - self.band, key.rank < query.rank + self.band

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        groups = cast(GroupSelection, selection)
        arrangement = SortedGrid if groups.query is groups.key else MergedGrid
        return arrangement(groups, call.batch, self.band, call.causal, call.lead)

    def cache(self) -> CachePolicy:
        return GroupRings(self.num_groups, self.band)

    def cross_cache(self) -> CrossCachePolicy:
        return GroupRange(self.band)


@dataclasses.dataclass(frozen=True)
class GroupSelection(Selection):
    """The group of each token.

    Args:
        query: int32 (B or 1, n, T), groups of the queries, see `ops.gather.token_groups`.
        key: int32 (B or 1, m, S), groups of the keys; `query` itself if queries are used as keys.
        lead: -1 if key j is at position j + 1, see `Successors`. Default 0.
    """

    query: Tensor
    key: Tensor
    lead: int = 0

    def features(self) -> TokenFeatures:
        """Return "group" and "rank", the number of earlier keys of the group."""
        key = self.key if self.lead == 0 else shift_right(self.key, -1, NO_GROUP)
        _, key_ranks = stable_order(key)
        query_ranks = key_ranks
        if key is not self.query:
            batch = max_size(shape(self.query)[0], shape(key)[0])
            sides = self.query, repeat_key_heads(key, self.query.shape[1])
            merged = sort_queries_and_keys(*(ops.broadcast_to(x, (batch, *shape(x)[1:])) for x in sides))
            query_ranks = take_numbers(merged.last_key, merged.query_slots)
        of_keys = {"group": mark_missing_keys(key), "rank": key_ranks}
        if self.lead:
            of_keys = {name: shift_left(x, -1) for name, x in of_keys.items()}
        return TokenFeatures({"group": self.query, "rank": query_ranks}, of_keys)


@dataclasses.dataclass(frozen=True)
class NewGroups(GroupSelection):
    """The groups of new tokens.

    Args:
        query, key, lead: as in `GroupSelection`, for the new tokens alone.
        cached: `TokenFeatures` whose ranks count the cached keys.
    """

    cached: TokenFeatures = dataclasses.field(default_factory=lambda: TokenFeatures({}, {}))

    def features(self) -> TokenFeatures:
        if self.lead == 0:
            return self.cached
        return self.cached._replace(key={name: shift_left(x, -1) for name, x in self.cached.key.items()})


class GroupSelector(Selector):
    """Selector that assigns each token to a group.

    Args:
        grouper: object with the method `assign(heads, positions)`, which returns the group of each token. Each of the m
            key heads is grouped separately. Several query heads may share a key head.
        num_groups: K.
        num_heads: m, heads of keys.
        normalizes: whether queries and keys are layer-normalized before they are assigned to groups. Default False.
        reads_successors: whether key j is at position j + 1 in decoding, see `Successors`. Default False.
    """

    key_features = ("group", "rank")

    def __init__(
        self,
        grouper: Grouper,
        num_groups: int,
        num_heads: int,
        normalizes: bool = False,
        reads_successors: bool = False,
    ) -> None:
        self.grouper, self.num_groups, self.num_heads = grouper, num_groups, num_heads
        self.normalizes, self.reads_successors = normalizes, reads_successors

    def for_successors(self) -> Self:
        """Return a copy with `reads_successors=True`."""
        return type(self)(self.grouper, self.num_groups, self.num_heads, self.normalizes, reads_successors=True)

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        return self._assign(self.normalize_heads(heads), positions)

    def _assign(self, heads, positions):
        """Assign compared heads (B, n, T, H) by the grouper of their key head, n a multiple of m."""
        num_heads = heads.shape[1]
        if num_heads == self.num_heads:
            return self.grouper.assign(heads, positions)
        positions = ops.tile(positions, (1, num_heads // self.num_heads))
        return unfold_groups(self.grouper.assign(fold_groups(heads, self.num_heads), positions), num_heads)

    def normalize_heads(self, heads: Tensor) -> Tensor:
        """Layer-normalize heads if `normalizes` is True."""
        return normalize(heads) if self.normalizes else heads

    def group_tokens(self, inputs: SelectionInputs) -> tuple[list[tuple[Tensor, Tensor | None]], list[Tensor]]:
        """Assign the tokens of a call to groups, int32 (B, n, T), and update the grouper in training.

        Returns two lists: pairs of (normalized) heads and their masks, and the groups. Each list has one entry for
        queries and one for keys, or a single entry for both.
        """
        sides = [(self.normalize_heads(heads), mask) for heads, mask in inputs.sides()]
        groups = [self._assign(heads, token_positions(heads)) for heads, _ in sides]
        if inputs.training:
            self.train(sides, groups)
        return sides, groups

    def train(self, sides: Sequence[tuple[Tensor, Tensor | None]], groups: Sequence[Tensor]) -> None:
        """Update the grouper if it has a method `learn`. Query heads that share a key head count equally."""
        if hasattr(self.grouper, "learn"):
            self.grouper.learn([self._fold(*side, own) for side, own in zip(sides, groups, strict=True)])

    def _fold(self, heads, mask, groups):
        """Fold the query heads that share a key head into the batch of tokens, masks and groups."""
        size = heads.shape[1] // self.num_heads
        if size == 1:
            return heads, mask, groups
        mask = None if mask is None else ops.tile(mask, (1, size))
        groups = fold_groups(groups[..., None], self.num_heads)[..., 0]
        return fold_groups(heads, self.num_heads), mask, groups

    def select(self, inputs: SelectionInputs) -> Selection:
        sides, groups = self.group_tokens(inputs)
        documents = _segment_ranks(inputs.masks)
        selected = [
            token_groups(own, self.num_groups, mask, document)
            for own, (_, mask), document in zip(groups, sides, documents, strict=False)
        ]
        return GroupSelection(selected[0], selected[-1])

    def select_keys(self, key: Tensor, mask: Tensor | None) -> Tensor:
        return self.assign(key, token_positions(key))

    def init(self, entry: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the initial decoding state.

        "count", int32 (B, m, K): number of keys per group. With `reads_successors`, also "last_group", int32 (B, m, 1):
        group of the previous token.
        """
        batch, heads = shape(entry["key"])[:2]
        state = {"count": ops.zeros((batch, heads, self.num_groups), dtype="int32")}
        if self.reads_successors:
            state["last_group"] = ops.zeros((batch, heads, 1), dtype="int32")
        return state

    def add(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        groups, exists, changed = self.assign(inputs.key, tokens.positions), tokens.exists[:, None], {}
        if self.reads_successors:  # each value is paired with the previous key
            groups, changed["last_group"] = tokens.shift(groups, state["last_group"])
            exists = ops.logical_and(exists, tokens.positions[:, None] > 0)
        if tokens.length == 1:
            ranks = take_numbers(state["count"], groups)
            changed["count"] = write_slots(state["count"], ranks + 1, groups, exists)
            return changed, {"group": groups, "rank": ranks}
        groups = ops.where(exists, groups, self.num_groups)
        new = group_counts(groups, self.num_groups)
        changed["count"] = state["count"] + new
        # Rank in the group: rank among the sorted new keys, minus the first rank of the group, plus its cached keys.
        first = ops.pad(ops.cumsum(new, axis=-1), [(0, 0), (0, 0), (1, 0)])
        before = ops.pad(state["count"], [(0, 0), (0, 0), (0, 1)])
        return changed, {"group": groups, "rank": stable_order(groups)[1] + take_numbers(before - first, groups)}

    def select_new(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens, added: Mapping[str, Tensor]
    ) -> Selection | TokenFeatures:
        is_shared = inputs.key is inputs.query and not self.reads_successors
        if tokens.length == 1:
            query = added["group"] if is_shared else self.assign(inputs.query, tokens.positions)
            return TokenFeatures({"group": query, "rank": take_numbers(state["count"], query) - 1}, added)
        query = self.assign(inputs.query, tokens.positions)
        new = group_counts(added["group"], self.num_groups)
        heads = query.shape[1]
        merged = sort_queries_and_keys(query, repeat_key_heads(added["group"], heads))
        # Convert the rank of the last key up to the query: from a rank among the new keys to a rank in its group.
        before = state["count"] - new - (ops.cumsum(new, axis=-1) - new)
        last = take_numbers(merged.last_key, merged.query_slots) + take_numbers(before, query)
        features = TokenFeatures({"group": query, "rank": last}, added)
        keys = query if inputs.key is inputs.query else self.assign(inputs.key, tokens.positions)
        of_queries = token_groups(query, self.num_groups, tokens.exists)
        of_keys = of_queries if keys is query else token_groups(keys, self.num_groups, tokens.exists)
        return NewGroups(of_queries, of_keys, cached=features)

    def rewind(self, entry: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        batch, heads, num_slots = shape(entry["position"])
        size, ends = num_slots // self.num_groups, lengths[:, None, None] - EMPTY
        groups = ops.reshape(entry["position"] >= ends, (batch, heads, self.num_groups, size))
        changed = {"count": entry["count"] - ops.sum(ops.cast(groups, "int32"), axis=-1)}
        if self.reads_successors:  # the slot of the next position holds the key of the last token that remains
            slot, found = find_position(entry["position"], ends)
            changed["last_group"] = ops.where(found, slot // size, entry["last_group"])
        return changed


def token_positions(heads: Tensor) -> Tensor:
    """Return the positions 0 .. T - 1 of tokens (B, n, T, H), int32 (1, T)."""
    return ops.arange(shape(heads)[2], dtype="int32")[None]


def _segment_ranks(masks: TokenMasks) -> Sequence[Tensor | None]:
    """Return the `segment_ranks` of queries and of keys, None without packed documents."""
    queries, keys = masks.query_segments, masks.key_segments
    if queries is None or keys is None:
        return None, None
    return segment_ranks(queries) * 2 if keys is queries else segment_ranks(queries, keys)


class SortedGrid(Arrangement):
    """Tokens sorted by (group, position), in the blocks of a window of ranks. Queries are used as keys.

    Args:
        selection: a `GroupSelection`.
        batch: B, an integer or a scalar tensor.
        band: keys per side that a query attends to in its group, including the key at its position.
        causal: whether later keys are masked.
        lead: 0, or -1 if a query attends only to earlier keys, see `Arrangement`.
    """

    keeps_token_masks = True
    sorts_tokens = True

    def __init__(self, selection: GroupSelection, batch: Size, band: int, causal: bool, lead: int = 0) -> None:
        groups = selection.query
        _, heads, length = shape(groups)
        self._selection, self._sizes = selection, (batch, heads, length)
        groups = ops.broadcast_to(groups, self._sizes)
        self._order, self._inverse = stable_order(groups)
        self.groups = take_numbers(groups, self._order)
        self._grid = window_grid(length, length, band, causal, lead)
        # By identity: queries that are used as keys are sorted once.
        self._sorted: dict[int, tuple[Tensor, Tensor]] = {}
        self.key_length, self.lead = length, lead
        self.offsets, self.limits = self._grid.offsets, self._grid.limits

    def to_kernel_order(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            return take_numbers(ops.broadcast_to(x, self._sizes), self._order)
        if id(x) not in self._sorted:
            self._sorted[id(x)] = x, permute_rows(x, self._order, self._inverse)
        return self._sorted[id(x)][1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.queries(self.to_kernel_order(x, axis), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.keys(self.to_kernel_order(x, axis), axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self.from_kernel_order(self._grid.restore(x, axis))

    def from_kernel_order(self, x: Tensor) -> Tensor:
        return permute_rows(x, self._inverse, self._order)

    def query_positions(self) -> Tensor:
        return self._grid.queries(self._order, -1)

    def key_positions(self) -> Tensor:
        return self._grid.keys(self._order, -1)

    def distances(self) -> Distances:
        return Distances(self.offsets, tokens=self.relative_positions())

    def features(self, selection: Selection | TokenFeatures) -> TokenFeatures:
        if selection is not self._selection:
            return super().features(selection)
        # The grid pads groups with 0, which no query has. Ranks are slots of the sorted order, so they are constants.
        query_ranks, key_ranks = self._grid.rule_positions(1)
        return TokenFeatures(
            {"group": self._grid.queries(self.groups, -1)[..., :, None], "rank": query_ranks},
            {"group": self._grid.keys(mark_missing_keys(self.groups), -1)[..., None, :], "rank": key_ranks},
        )

    def row_has_key(self) -> Tensor | None:
        if self.lead:
            return None
        return self._grid.queries(self.groups != NO_GROUP, -1)[..., None]  # tokens that exist attend to themselves


class MergedOrder(NamedTuple):
    """Queries and keys sorted by (group, position, keys first), in M slots. All int32 (B, N, M) or bool.

    Attributes:
        positions: position of the token in each slot.
        is_query: whether a slot holds a query.
        last_key: rank among the sorted keys of the last key at or before a slot; -1 before the first key.
        query_slots: (B, N, T), slot of each query.
    """

    positions: Tensor
    is_query: Tensor
    last_key: Tensor
    query_slots: Tensor


def sort_queries_and_keys(query_groups: Tensor, key_groups: Tensor, queries_first: bool = False) -> MergedOrder:
    """Sort queries and keys by (group, position).

    Args:
        query_groups: int32 (B, N, T).
        key_groups: int32 (B, N, S).
        queries_first: whether a query precedes the key of its position, and so does not attend to it. Default False.
    """
    batch, heads, num_queries = shape(query_groups)
    num_keys = shape(key_groups)[-1]
    length = max_size(num_queries, num_keys)
    groups = [_pad_groups(query_groups, length - num_queries), _pad_groups(key_groups, length - num_keys)]
    pairs = ops.stack(groups if queries_first else groups[::-1], axis=-1)
    # A stable sort of interleaved groups puts the key of a position directly before its query, or after it.
    order, inverse = stable_order(ops.reshape(pairs, (batch, heads, 2 * length)))
    of_queries = 0 if queries_first else 1
    is_query = order % 2 == of_queries
    last_key = ops.cumsum(ops.cast(ops.logical_not(is_query), "int32"), axis=-1) - 1
    query_slots = ops.reshape(inverse, (batch, heads, length, 2))[:, :, :num_queries, of_queries]
    return MergedOrder(order // 2, is_query, last_key, query_slots)


def _pad_groups(groups, added):
    """Append `added` tokens without a group."""
    exists = pad_axis(ops.ones_like(groups, dtype="bool"), -1, 0, added)
    return ops.where(exists, pad_axis(groups, -1, 0, added), NO_GROUP)


class KeyBlocks(NamedTuple):
    """For each block of merged slots, the aligned blocks of sorted keys that its queries can attend to.

    Attributes:
        block_size: b, slots and keys per block.
        num_slots: M.
        first: int32 (B, N, G), index of the block of sorted keys with the first key of each block of slots.
        before, after: number of key blocks before and after block `first`.
    """

    block_size: int
    num_slots: Size
    first: Tensor
    before: int
    after: int

    @classmethod
    def of_band(cls, merged: MergedOrder, band: int, causal: bool) -> Self:
        """Compute the key blocks of a band.

        A block of b slots holds at most b keys, and the first of them is at most b - 1 into its key block.
        """
        size = window_grid(1, 1, band, causal).block_size
        num_slots = shape(merged.positions)[-1]
        is_key = ops.cast(ops.logical_not(merged.is_query), "int32")
        num_blocks = (num_slots + size - 1) // size
        first = split(merged.last_key + 1 - is_key, size, -1, num_blocks)[..., 0] // size
        last = 2 * size - 2 if causal else 2 * size + band - 3
        return cls(size, num_slots, first, -(-band // size), last // size)

    def slots(self, x: Tensor, axis: int) -> Tensor:
        """Split merged slots into blocks: (..., M, ...) to (..., G, t, ...)."""
        return split(x, self.block_size, axis, (self.num_slots + self.block_size - 1) // self.block_size)

    def rows(self, x: Tensor) -> Tensor:
        """Gather the sorted keys of each block: (B, M, S, H) to (B, N, G, s, H), zeros outside."""
        batch, heads, length, size = shape(x)
        num_blocks = (length + self.block_size - 1) // self.block_size
        x = split(x, self.block_size, -2, num_blocks + 1)  # the last block is empty, for indices outside
        index = self._index()
        index = ops.where(ops.logical_and(index >= 0, index < num_blocks), index, num_blocks)
        x = ops.reshape(x, (batch, heads, num_blocks + 1, self.block_size * size))
        x = take_rows(x, ops.reshape(index, (batch, self.first.shape[1], -1)))
        return ops.reshape(x, (*shape(self.first), self._width, size))

    def numbers(self, x: Tensor) -> Tensor:
        """Gather numbers of the sorted keys of each block: int32 (B, M, S) to (B, N, G, s), zeros outside."""
        return self.rows(x[..., None])[..., 0]

    def ranks(self) -> Tensor:
        """Return the rank of each key of each block, int32 (B, N, G, s)."""
        ranks = self._index()[..., None] * self.block_size + ops.arange(self.block_size, dtype="int32")
        return ops.reshape(ranks, (*shape(self.first), self._width))

    @property
    def _width(self):
        return (self.before + 1 + self.after) * self.block_size

    def _index(self):
        return self.first[..., None] + ops.arange(-self.before, self.after + 1, dtype="int32")


class MergedGrid(Arrangement):
    """Queries and separate keys, sorted by (group, position, keys first), in blocks with aligned key blocks.

    Blocks are cut on the merged order of queries and keys, so that a block of b slots holds at most b keys and needs a
    fixed number of aligned blocks of sorted keys. Half of the slots hold keys, whose results are dropped: 3 to 4 times
    the cost of `SortedGrid`, which has the same arguments. Query heads that share keys share the sort of the keys.
    """

    keeps_token_masks = True
    sorts_tokens = True

    def __init__(self, selection: GroupSelection, batch: Size, band: int, causal: bool, lead: int = 0) -> None:
        query_groups, key_groups = selection.query, selection.key
        (_, heads, self._num_queries), (_, key_heads, num_keys) = shape(query_groups), shape(key_groups)
        self._selection = selection
        self._sizes = {"queries": (batch, heads, self._num_queries), "keys": (batch, key_heads, num_keys)}
        query_groups = ops.broadcast_to(query_groups, self._sizes["queries"])
        key_groups = ops.broadcast_to(key_groups, self._sizes["keys"])
        self._merged = sort_queries_and_keys(query_groups, repeat_key_heads(key_groups, heads), queries_first=lead < 0)
        self._blocks = KeyBlocks.of_band(self._merged, band, causal)
        self._key_order, self._key_inverse = stable_order(key_groups)
        self._rows = ops.minimum(self._merged.positions, self._num_queries - 1)
        self._query_ranks = self._blocks.slots(self._merged.last_key, -1)[..., None]  # (..., t, 1)
        self._key_ranks = self._blocks.ranks()[..., None, :]  # (..., 1, s)
        self.key_length, self.lead = num_keys, lead

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            x = ops.broadcast_to(x, self._sizes["queries"])
            return self._blocks.slots(take_numbers(x, self._rows), -1)
        # Slots of keys get arbitrary rows. Their outputs are not used, so the gradient may skip them.
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

    def features(self, selection: Selection | TokenFeatures) -> TokenFeatures:
        if selection is not self._selection:
            return super().features(selection)
        groups = {"group": self._selection.query}, {"group": mark_missing_keys(self._selection.key)}
        query, key = super().features(TokenFeatures(*groups))
        return TokenFeatures({**query, "rank": self._query_ranks}, {**key, "rank": self._key_ranks})

    def causal_order(self) -> tuple[Tensor, Tensor]:
        return self._query_ranks, self._key_ranks

    def distances(self) -> Distances:
        return Distances(ranks=self._key_ranks - self._query_ranks, tokens=self.relative_positions())


@dataclasses.dataclass(frozen=True)
class GroupRings(CachePolicy):
    """A ring buffer of the last `size` tokens per group: rank r of group g is in slot g size + r mod size."""

    num_groups: int
    size: int
    is_bounded = True

    def num_slots(self, max_length: Size) -> Size:
        return self.num_groups * min_if_known(self.size, max_length)

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return is_full_size(self.num_groups * self.size, num_slots) or length <= num_slots // self.num_groups

    def with_spare(self, count: int) -> CachePolicy:
        return dataclasses.replace(self, size=self.size + count)

    @property
    def num_visible(self) -> int | None:
        return self.size

    def capacity(self, num_slots: Size) -> Size:
        return num_slots // self.num_groups

    def slot_tokens(self, tokens: TokenInfo, new: NewTokens, num_slots: Size) -> Tensor:
        groups, size = tokens.group, num_slots // self.num_groups
        batch, heads, length = shape(groups)
        order, _ = stable_order(groups)
        count = group_counts(groups, self.num_groups)
        first = ops.cumsum(count, axis=-1) - count
        before = take_numbers(take_numbers(tokens.rank, order), in_range(first, length))  # cached keys of the group
        numbers = ring_positions(size, before + count - 1) - before[..., None]  # (B, n, K, size)
        is_new = ops.logical_and(numbers >= 0, count[..., None] > 0)
        at = ops.reshape(ops.where(is_new, first[..., None] + numbers, -1), (batch, heads, num_slots))
        return ops.where(at >= 0, take_numbers(order, in_range(at, length)), -1)

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        size = num_slots // self.num_groups
        return token.group * size + token.rank % size, None

    def buckets(self, query: TokenInfo, num_slots: Size, selection: Any = None) -> Buckets | None:
        return Buckets(query.group[..., None], num_slots // self.num_groups)


def group_counts(groups: Tensor, num_groups: int) -> Tensor:
    """Count the tokens of each group, int32 (B, n, T) to (B, n, K). Groups from K on are not counted."""
    batch, heads, _ = shape(groups)
    rows = ops.reshape(ops.arange(batch * heads, dtype="int32"), (batch, heads, 1)) * (num_groups + 1)
    index = ops.reshape(rows + ops.minimum(groups, num_groups), (-1,))
    total = batch * heads * (num_groups + 1)
    count = ops.segment_sum(ops.ones_like(index), index, num_segments=total)
    return ops.reshape(count, (batch, heads, num_groups + 1))[..., :num_groups]


@dataclasses.dataclass(frozen=True)
class GroupRange(CrossCachePolicy):
    """The `size` keys of the query's group up to its position, and as many after it.

    Keys and values are stored sorted by (group, position). "order" int32 (B, n, S) holds their positions. "group" and
    "rank" are in the order of the sequence.
    """

    size: int

    names = ("group", "rank")

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: SelectedKeys | None) -> dict[str, Tensor]:
        groups = groups if mask is None else ops.where(mask[:, None], groups, NO_GROUP)
        order, inverse = stable_order(groups)
        rows = {"key": take_rows(key, order), "value": take_rows(value, order)}
        return {**rows, "order": order, "group": groups, "rank": inverse}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, positions: Tensor) -> dict[str, Tensor]:
        groups = repeat_key_heads(entry["group"], group.shape[1])[:, :, None]  # type: ignore[union-attr]  # not None
        earlier = ops.arange(shape(groups)[-1], dtype="int32") <= positions[:, None, :, None]
        own = group[..., None]  # type: ignore[index]  # not None here
        precedes = ops.logical_or(groups < own, ops.logical_and(groups == own, earlier))  # (B, n, q, S)
        last = ops.sum(ops.cast(precedes, "int32"), axis=-1) - 1
        return {"group": group, "rank": last}

    def read(self, entry: Mapping[str, Tensor], query: TokenInfo) -> ReadKeys:
        length = shape(entry["key"])[2]
        size = min_if_known(self.size, length)
        at = query.rank[..., None] + ops.arange(1 - size, size, dtype="int32")
        positions = take_slots(entry["order"], at)
        key, value = (take_slots(entry[name], at) for name in ("key", "value"))
        return ReadKeys(key, value, positions, ops.logical_and(at >= 0, at < length))
