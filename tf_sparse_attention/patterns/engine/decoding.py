"""Decoding: attention of the next token of each row to the keys that it reads from a cache, under any pattern.

A step is an arrangement, `CachedGroup`: the query next to the slots that it reads, as one group. `attend_arranged`
computes it like any other arrangement.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.gather import take_numbers, take_positions
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads, take_key_heads
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.ring_buffer import write_slot
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.attending import attend_arranged, join_results
from tf_sparse_attention.patterns.engine.choices import choices_of_next
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions, Inputs
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, TokenFeatures, leaves_with_heads, take_heads
from tf_sparse_attention.patterns.engine.slots import (
    EMPTY,
    Cache,
    Entry,
    cache_policy,
    entry_name,
    group_columns,
    holds,
)
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import Tensor


class ReadSlots(NamedTuple):
    """The slots of a cache that a query reads.

    Attributes:
        key: (B, M, s, H), rotated by positions.
        value: (B, M, s, Hv).
        positions: int32 (1 or B, 1 or M or N, s); of successors the positions of the values. Undefined in empty slots.
        exists: bool, as `positions`, False in empty slots.
        features: for the leaf and for those that it excludes, by index, its `TokenFeatures`, (B, n, 1) and (B, m, s).
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    exists: Tensor
    features: Mapping[int, TokenFeatures]


class CachedGroup(Arrangement):
    """A query of each row next to the slots of a cache that it reads, as one group.

    Args:
        leaf: the `Leaf` whose slots they are.
        slots: the `ReadSlots`.
        index: int32 (B,), the position of each query.
        num_heads: N, of queries.
    """

    def __init__(self, leaf: Leaf, slots: ReadSlots, index: Tensor, num_heads: int) -> None:
        def spread(x):
            return x if x.shape[1] == 1 else repeat_key_heads(x, num_heads)

        self.lead = -1 if leaf.reads_successors else 0
        self.key_length = shape(slots.key)[2]
        self._queries, self._keys = index[:, None, None, None], spread(slots.positions)[:, :, None] + self.lead
        self._exists = spread(slots.exists)[:, :, None, None]
        self._features = slots.features[leaf.index] if leaf.pattern.by_content else None

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.squeeze(x, axis - 1)

    def query_positions(self) -> Tensor:
        return self._queries

    def key_positions(self) -> Tensor:
        return self._keys

    def inside(self) -> Tensor:
        return self._exists

    def order(self) -> tuple[Tensor, Tensor]:
        queries, keys = self.pairs()
        return queries, keys - self.lead

    def distances(self) -> Distances:
        tokens = self.apart()
        ranks = tokens - self.lead
        if self._features is not None:
            queries, keys = self.known(self._features)
            ranks = keys["rank"] - queries["rank"]
        return Distances(ranks=ranks, tokens=tokens, pairs=self.pairs)


def decode_pattern(
    plans: Sequence[HeadPlan],
    cache: Cache,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Sequence[tuple[Tensor | None, Tensor | None]],
    index: Tensor,
    options: AttentionOptions,
    chosen: Mapping[int, Mapping[str, Tensor]] = {},
) -> tuple[Tensor, Cache]:
    """Compute attention of the next token to itself and to the keys in the cache, and add it to the cache.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, `fill_cache` or this function.
        query: scaled queries (B, N, 1, H), not rotated.
        key: keys (B, M, 1, H), not rotated.
        value: values (B, M, 1, Hv).
        groups: for each leaf a pair of the groups of query and key, int32 (B, n, 1) and (B, m, 1); None unless the leaf
            is content-based.
        index: int32 (B,), the position of the token; -1 in rows without a token.
        options: an `AttentionOptions`.
        chosen: selected blocks of the query, int32 (B, n) by name, for leaves of `ChosenBlocks` by their index.

    Returns:
        Pair of the output (B, N, 1, Hv) and the cache. Where `index` is -1 or beyond the slots of the cache, the output
        is NaN and the cache is unchanged.
    """
    at, held = index[:, None, None], holds(plans, cache, index + 1)
    kept = (index >= 0 if held is True else ops.logical_and(held, index >= 0))[:, None]
    rotated, key = options.position.rotate(query, at), options.position.rotate_for_cache(key, at)
    cache, queries, keys = dict(cache), {}, {}
    for leaf, own_key, own_value in leaves_with_heads(plans, key, value):
        entry, (query_groups, key_groups), is_kept = dict(cache[entry_name(leaf)]), groups[leaf.index], kept
        if leaf.reads_successors:  # the key of the token before comes with the value of this one
            last = {"last_key": own_key} if key_groups is None else {"last_key": own_key, "last_group": key_groups}
            own_key, key_groups = entry["last_key"], entry.get("last_group")
            entry |= {name: _where_kept(kept, ops.cast(x, entry[name].dtype), entry[name]) for name, x in last.items()}
            is_kept = merge(kept, index[:, None] > 0)
        if leaf.pattern.by_content:
            queries[leaf.index], keys[leaf.index], count = _count(entry["count"], query_groups, key_groups, is_kept)
            entry = {**entry, "count": count}
        cache[entry_name(leaf)] = _write(leaf, entry, own_key, own_value, keys, index, is_kept)

    queries |= {**chosen, **choices_of_next(plans, cache, rotated, index)}

    def read(leaf):
        slots = _read(leaf, cache[entry_name(leaf)], queries, index)
        return slots._replace(key=options.position.rotate_from_cache(slots.key, slots.positions))

    output = attend_read(plans, query, rotated, read, index, options, causal=True)
    return ops.where(kept[..., None, None], output, float("nan")), cache


def attend_read(
    plans: Sequence[HeadPlan],
    query: Tensor,
    rotated: Tensor,
    read: Callable[[Leaf], ReadSlots],
    index: Tensor,
    options: AttentionOptions,
    causal: bool,
) -> Tensor:
    """Compute attention of one query per row to the slots that it reads, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        query: scaled queries (B, N, 1, H).
        rotated: the queries rotated by their positions.
        read: function of a `Leaf` that returns its `ReadSlots`.
        index: int32 (B,), positions of the queries.
        options: an `AttentionOptions`.
        causal: whether later keys are masked.
    """
    results = []
    for plan in plans:
        own, queries, parts = options.slice_heads(plan.heads), take_heads(rotated, plan.heads), []
        batch, heads = shape(queries)[:2]
        for leaf in plan.leaves:
            slots = read(leaf)
            arrangement = CachedGroup(leaf, slots, index, heads)
            hidden = own._replace(hide_self=None) if leaf.reads_successors else own
            inputs = Inputs(queries, slots.key, slots.value, slots.features, TokenMasks(), hidden)
            call = Call(batch, 1, arrangement.key_length, causal)
            parts.append(
                attend_arranged(arrangement, leaf, inputs, call, return_weights=False, return_log_sum_exp=True)
            )
        results.append(combine_attended(parts))
    return join_results(results, plans, query, options).output


def _count(count, query_groups, key_groups, kept):
    """Return group and rank of a token's query and of its key, dictionaries of (B, n or m), and the updated counts."""
    ranks = take_numbers(count, key_groups)[..., 0]
    count = write_slot(count, ranks + 1, key_groups[..., 0], kept)
    last = take_numbers(count, query_groups)[..., 0] - 1
    return {"group": query_groups[..., 0], "rank": last}, {"group": key_groups[..., 0], "rank": ranks}, count


def _where_kept(kept: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return new values (B, ...) in the rows that are `kept`, bool (B, 1), old ones in the others."""
    return ops.where(ops.reshape(kept, (-1, *[1] * (len(new.shape) - 1))), new, old)


def _write(
    leaf: Leaf,
    entry: Entry,
    key: Tensor,
    value: Tensor,
    known: Mapping[int, Mapping[str, Tensor]],
    index: Tensor,
    kept: Tensor,
) -> Entry:
    """Write the key and value (B, n, 1, H) of the token at `index` (B,) to an entry, in rows `kept` (B, 1)."""
    place, num_slots = Place(index[:, None], 0, known.get(leaf.index, {})), shape(entry["key"])[2]
    policy = cache_policy(leaf)
    at, kept_slot = policy.slot(place, num_slots)
    at = in_range(at, num_slots)  # a slot that does not exist would be one of the next head
    kept = merge(kept_slot, kept)
    new = {"key": key, "value": value, "position": index[:, None] - EMPTY, **group_columns(leaf, known)}
    new = {name: write_slot(entry[name], x, at, kept) for name, x in new.items()}
    return {**entry, **new, **policy.digest_of_next(entry, key, place, kept)}


def _read(leaf: Leaf, entry: Entry, queries: Mapping[int, Mapping[str, Tensor]], index: Tensor) -> ReadSlots:
    """Return the `ReadSlots` of the query at `index` (B,) with features (B, n) by name, for each leaf by index."""
    policy, (_, heads, num_slots, _) = cache_policy(leaf), shape(entry["key"])
    at = policy.read(Place(index[:, None], 0, queries.get(leaf.index, {})), num_slots)
    if policy.shares_reads and at is not None:
        at = take_key_heads(at, heads)

    def rows(name):
        return entry[name] if at is None else take_positions(entry[name], at)

    def numbers(name):
        return entry[name] if at is None else take_positions(entry[name][..., None], at)[..., 0]

    positions, features = numbers("position") + EMPTY, {}
    for each in (leaf, *leaf.excluded):
        of_query = {name: x[..., None] for name, x in queries.get(each.index, {}).items()}
        names = ("group", "rank") if each.pattern.by_content else ()
        features[each.index] = TokenFeatures(of_query, {name: numbers(f"{name}_{each.index}") for name in names})
    return ReadSlots(rows("key"), rows("value"), positions, positions > EMPTY, features)
