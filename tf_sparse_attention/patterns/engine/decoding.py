"""Decoding token by token under any pattern: attention of one query to what a cache keeps, see `engine.slots`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

from keras import ops

from tf_sparse_attention.ops.attend import Attended, apply_sinks, attend_shared_keys, combine_attended
from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.gather import take_numbers, take_positions
from tf_sparse_attention.ops.grouped_heads import attend_heads, repeat_key_heads, take_key_heads
from tf_sparse_attention.ops.groups import with_self_bias
from tf_sparse_attention.ops.masks import merge, negate
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.ring_buffer import write_slot
from tf_sparse_attention.patterns.conditions import rule_conditions
from tf_sparse_attention.patterns.engine.choices import choices_of_next
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import (
    HeadPlan,
    Leaf,
    join_heads,
    leaves_with_heads,
    take_heads,
)
from tf_sparse_attention.patterns.engine.slots import (
    EMPTY,
    Cache,
    Entry,
    cache_policy,
    entry_name,
    group_columns,
    holds,
)
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


class CachedKeys(NamedTuple):
    """The keys that a query reads from a cache.

    Attributes:
        key: (B, m, s, H), turned by positions, m the heads of queries or of keys.
        value: (B, m, s, Hv).
        places: for each leaf whose rule is asked of them the `Place` of the keys, (B, 1 or n, s), by its index.
        exists: bool (B, 1 or n, s), where a slot holds a key.
    """

    key: Tensor
    value: Tensor
    places: Mapping[int, Place]
    exists: Tensor

    def repeat_key_heads(self, num_heads: int) -> Self:
        """Returns these keys with places for each of the query heads, which may share them in groups."""
        if self.key.shape[1] == num_heads:
            return self

        def spread(place):
            known = {name: repeat_key_heads(x, num_heads) for name, x in place.known.items()}
            return place._replace(position=repeat_key_heads(place.position, num_heads), known=known)

        places = {index: spread(place) for index, place in self.places.items()}
        return self._replace(places=places, exists=repeat_key_heads(self.exists, num_heads))


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
    """Returns attention of the next token to what the cache keeps and to itself, and the cache after it.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, `fill_cache` or this function.
        query: scaled queries (B, N, 1, H), not turned by positions.
        key: keys (B, M, 1, H), not turned.
        value: values (B, M, 1, Hv).
        groups: for each leaf a pair of the groups of query and key, int32 (B, n, 1) and (B, m, 1), None of one that
            goes by positions.
        index: int32 (B,), the position of the token; -1 in rows without a token.
        options: an `AttentionOptions`.
        chosen: what was chosen for the query, int32 (B, n) by name, for leaves of `ChosenBlocks` by their index.

    Returns:
        Pair of the output (B, N, 1, Hv) and the cache. Where `index` is -1 or beyond the slots of the cache, the output
        is NaN and nothing is kept.
    """
    at, held = index[:, None, None], holds(plans, cache, index + 1)
    kept = (index >= 0 if held is True else ops.logical_and(held, index >= 0))[:, None]
    turned, key = options.position.rotate(query, at), options.position.rotate_for_cache(key, at)
    cache, queries, keys = dict(cache), {}, {}
    for leaf, own_key, own_value in leaves_with_heads(plans, key, value):
        entry, (query_groups, key_groups), is_kept = dict(cache[entry_name(leaf)]), groups[leaf.index], kept
        if leaf.pattern.reads_successors:  # the key of the token before comes with the value of this one
            last = {"last_key": own_key} if key_groups is None else {"last_key": own_key, "last_group": key_groups}
            own_key, key_groups = entry["last_key"], entry.get("last_group")
            entry |= {name: _where_kept(kept, ops.cast(x, entry[name].dtype), entry[name]) for name, x in last.items()}
            is_kept = merge(kept, index[:, None] > 0)
        if leaf.pattern.by_content:
            queries[leaf.index], keys[leaf.index], count = _count(entry["count"], query_groups, key_groups, is_kept)
            entry = {**entry, "count": count}
        cache[entry_name(leaf)] = _write(leaf, entry, own_key, own_value, keys, index, is_kept)

    queries |= {**chosen, **choices_of_next(plans, cache, turned, index)}

    def read(leaf):
        places = _query_places(leaf, queries, index)
        keys = _read(leaf, cache[entry_name(leaf)], places[leaf.index])
        return places, keys._replace(key=options.position.rotate_from_cache(keys.key, keys.places[leaf.index].position))

    output = attend_cached(plans, query, turned, read, options, causal=True)
    return ops.where(kept[..., None, None], output, float("nan")), cache


def attend_cached(
    plans: Sequence[HeadPlan],
    query: Tensor,
    turned: Tensor,
    read: Callable[[Leaf], tuple[Mapping[int, Place], CachedKeys]],
    options: AttentionOptions,
    causal: bool,
) -> Tensor:
    """Returns attention of one query a row to keys that are read from a cache, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        query: scaled queries (B, N, 1, H).
        turned: the same, turned by positions.
        read: function of a `Leaf` to the places of the query for it and for what it excludes, by index, and its
            `CachedKeys`.
        options: an `AttentionOptions`.
        causal: whether later keys are hidden.
    """
    results = []
    for plan in plans:
        own, asking = options.slice_heads(plan.heads), take_heads(turned, plan.heads)
        results.append(combine_attended([_attend_leaf(leaf, asking, *read(leaf), own, causal) for leaf in plan.leaves]))
    attended = Attended(*(join_heads(list(parts), plans) for parts in zip(*results, strict=True)))
    if options.persistent is not None:
        others = attend_shared_keys(query, *options.persistent, soft_cap=options.soft_cap, return_log_sum_exp=True)
        attended = combine_attended([attended, others])
    return (attended if options.sinks is None else apply_sinks(attended, options.sinks)).output


def _attend_leaf(
    leaf: Leaf,
    query: Tensor,
    places: Mapping[int, Place],
    cached: CachedKeys,
    options: AttentionOptions,
    causal: bool,
) -> Attended:
    """Returns the `Attended` of one query a row (B, n, 1, H) to the `CachedKeys` of a leaf."""
    batch, heads, size = *shape(query)[:2], shape(cached.key)[2]
    cached = cached.repeat_key_heads(heads)

    def of_pairs(x):
        return ops.broadcast_to(x[:, :, None, None], (batch, heads, 1, 1, size))

    own, key = places[leaf.index], cached.places[leaf.index]
    tokens = key.position - own.position[..., None]
    conditions = [cached.exists, _rule(leaf, places, cached), tokens <= 0 if causal else None]
    conditions += [negate(_rule(other, places, cached)) for other in leaf.excluded]
    lead = -1 if leaf.pattern.reads_successors else 0  # a key is at the position of its value
    hide_self = None if lead else options.hide_self
    if hide_self == "always":
        conditions.append(tokens != 0)
    span = options.span if leaf.pattern.in_span else None
    ranks = key.rank - own.rank[..., None] if leaf.pattern.by_content else tokens
    distances = Distances(
        ranks=of_pairs(ranks + lead),
        tokens=of_pairs(tokens + lead),
        pairs=lambda: (own.position[:, :, None, None, None], key.position[:, :, None, None] + lead),
    )
    query = query[:, :, None]  # (B, n, 1, 1, H)
    bias = options.position.score_bias(query, distances)
    if hide_self == "unless_alone":
        bias = with_self_bias(bias, distances.tokens == 0)
    attended = attend_heads(
        query,
        cached.key[:, :, None],
        cached.value[:, :, None],
        mask=of_pairs(merge(*conditions)),
        soft_cap=options.soft_cap,
        bias=bias,
        span=None if span is None else span.factor(distances),
        value_bias=options.position.value_bias(distances),
        return_log_sum_exp=True,
    )
    log_sum_exp = attended.log_sum_exp[:, :, 0]  # type: ignore[index]  # as asked for
    return Attended(attended.output[:, :, 0], None, log_sum_exp)


def _rule(leaf: Leaf, places: Mapping[int, Place], cached: CachedKeys) -> Tensor | None:
    """Returns what the rule of a leaf says of the keys that are read, bool broadcastable to (B, n, s), or None."""
    own = places[leaf.index]
    query = Place(own.position[..., None], 0, {name: x[..., None] for name, x in own.known.items()})
    return merge(*rule_conditions(leaf.pattern, query, cached.places[leaf.index]))


def _count(count, query_groups, key_groups, kept):
    """Returns group and rank of a token's query and of its key, dictionaries of (B, n or m), and the counts after."""
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
    """Returns an entry with the key and value (B, n, 1, H) of the token at `index` (B,), in rows `kept` (B, 1)."""
    place, num_slots = Place(index[:, None], 0, known.get(leaf.index, {})), shape(entry["key"])[2]
    policy = cache_policy(leaf)
    at, kept_slot = policy.slot(place, num_slots)
    at = in_range(at, num_slots)  # a slot that does not exist would be one of the next head
    kept = merge(kept_slot, kept)
    new = {"key": key, "value": value, "position": index[:, None] - EMPTY, **group_columns(leaf, known)}
    new = {name: write_slot(entry[name], x, at, kept) for name, x in new.items()}
    return {**entry, **new, **policy.digest_of_next(entry, key, place, kept)}


def _query_places(leaf: Leaf, known: Mapping[int, Mapping[str, Tensor]], index: Tensor) -> dict[int, Place]:
    """Returns the `Place` of the query for a leaf and for those that it excludes, by index, (B, 1 or n)."""
    return {each.index: Place(index[:, None], 0, known.get(each.index, {})) for each in (leaf, *leaf.excluded)}


def _read(leaf: Leaf, entry: Entry, place: Place) -> CachedKeys:
    """Returns the `CachedKeys` that a query at a `Place` reads from an entry."""
    policy, (_, heads, num_slots, _) = cache_policy(leaf), shape(entry["key"])
    at = policy.read(place, num_slots)
    if policy.shares_reads and at is not None:
        at = take_key_heads(at, heads)

    def rows(name):
        return entry[name] if at is None else take_positions(entry[name], at)

    def numbers(name):
        return entry[name] if at is None else take_positions(entry[name][..., None], at)[..., 0]

    position = numbers("position") + EMPTY
    places = {}
    for each in (leaf, *leaf.excluded):
        names = ("group", "rank") if each.pattern.by_content else ()
        places[each.index] = Place(position, 0, {name: numbers(f"{name}_{each.index}") for name in names})
    return CachedKeys(rows("key"), rows("value"), places, position > EMPTY)
