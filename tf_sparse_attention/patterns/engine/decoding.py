"""Decoding: attention of the next token of each row to cached keys, under any pattern.

A step is an arrangement, `CachedGroup`: one group with the query and the slots that it reads. `attend_plain`
computes it like any other arrangement. Cross-attention reads the cache of a complete source sequence in the same way.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import combine_attended
from tf_sparse_attention.ops.gather import take_positions, write_slot
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import in_range, repeat_key_heads, shape, take_key_heads
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.attention import attend_plain, join_results
from tf_sparse_attention.patterns.engine.head_plans import (
    AttentionOptions,
    HeadPlan,
    Inputs,
    Leaf,
    slice_inputs,
    take_heads,
)
from tf_sparse_attention.patterns.engine.kv_cache import (
    EMPTY,
    Cache,
    Entry,
    Selectors,
    cache_policy,
    entry_name,
    feature_names,
    has_room,
)
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.selection import SelectionInputs, Selector, TokenFeatures, TokenInfo
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
    """Arrangement of a decoding step: one group per row with the query and the cache slots that it reads.

    Args:
        leaf: the `Leaf` that the slots belong to.
        slots: the `ReadSlots`.
        index: int32 (B,), the position of each query.
        num_heads: N, heads of queries.
    """

    def __init__(self, leaf: Leaf, slots: ReadSlots, index: Tensor, num_heads: int) -> None:
        def spread(x):
            return x if x.shape[1] == 1 else repeat_key_heads(x, num_heads)

        self.lead = -1 if leaf.reads_successors else 0
        self.key_length = shape(slots.key)[2]
        self._queries, self._keys = index[:, None, None, None], spread(slots.positions)[:, :, None] + self.lead
        self._exists = spread(slots.exists)[:, :, None, None]
        features = slots.features[leaf.index]
        self._ranks = features if "rank" in features.key else None

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

    def key_exists(self) -> Tensor:
        return self._exists

    def causal_order(self) -> tuple[Tensor, Tensor]:
        queries, keys = self.pairs()
        return queries, keys - self.lead

    def distances(self) -> Distances:
        tokens = self.relative_positions()
        ranks = tokens - self.lead
        if self._ranks is not None:
            queries, keys = self.features(self._ranks)
            ranks = keys["rank"] - queries["rank"]
        return Distances(ranks=ranks, tokens=tokens, pairs=self.pairs)


def decode_pattern(
    plans: Sequence[HeadPlan],
    cache: Cache,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    selectors: Selectors,
    heads: tuple[Tensor, Tensor],
    index: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Cache]:
    """Compute attention of the next token to itself and to the keys in the cache, and add it to the cache.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, `fill_cache` or this function.
        query: scaled queries (B, N, 1, H), not rotated.
        key: keys (B, M, 1, H), not rotated.
        value: values (B, M, 1, Hv).
        selectors: for each leaf its `Selector`, or None.
        heads: pair of queries (B, N, 1, H) and keys (B, M, 1, H) as selectors compare them, see `SelectionInputs`.
        index: int32 (B,), the position of the token; -1 in rows without a token.
        options: an `AttentionOptions`.

    Returns:
        Pair of the output (B, N, 1, Hv) and the cache. Where `index` is -1 or beyond the slots of the cache, the output
        is NaN and the cache is unchanged.
    """
    at, held = index[:, None, None], has_room(plans, cache, index + 1)
    kept = (index >= 0 if held is True else ops.logical_and(held, index >= 0))[:, None]
    rotated, key = options.position.rotate(query, at), options.position.rotate_for_cache(key, at)
    inputs = SelectionInputs(*heads, rotated, key)
    cache, features = dict(cache), {}
    for plan in plans:
        own_inputs = slice_inputs(plan, inputs)
        own_value = take_heads(value, plan.key_heads)
        for leaf in plan.leaves:
            entry, own_key, is_kept = dict(cache[entry_name(leaf)]), own_inputs.rotated_key, kept
            selector = selectors[leaf.index]
            if selector is not None:
                state, features[leaf.index] = selector.select_next(entry, own_inputs, index, kept)
                _check_features(selector, features[leaf.index])
                entry |= state
            if leaf.reads_successors:  # the key of the previous token comes with the value of this one
                own_key, last = entry["last_key"], ops.cast(own_key, entry["last_key"].dtype)
                entry["last_key"] = ops.where(kept[..., None, None], last, own_key)
                is_kept = merge(kept, index[:, None] > 0)
            columns = {at: features[i].key[name] for at, (i, name) in feature_names(leaf, selectors).items()}
            own_features = {} if selector is None else features[leaf.index].key
            cache[entry_name(leaf)] = _write(leaf, entry, own_key, own_value, own_features, columns, index, is_kept)

    def read(leaf):
        slots = _read(leaf, cache[entry_name(leaf)], features, selectors, index)
        return slots._replace(key=options.position.rotate_from_cache(slots.key, slots.positions))

    output = attend_read(plans, query, rotated, read, index, options, causal=True)
    return ops.where(kept[..., None, None], output, float("nan")), cache


def _check_features(selector: Selector, features: TokenFeatures) -> None:
    """Raise a `ValueError` unless a selector returned its features for one token per row."""
    for name, x in (*features.query.items(), *features.key.items()):
        if len(x.shape) != 3:
            raise ValueError(
                f"`select_next` of {type(selector).__name__} must return features of queries (B, n, 1) and keys "
                f"(B, m, 1). Received: {name!r} of shape {tuple(x.shape)}."
            )


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
            parts.append(attend_plain(arrangement, leaf, inputs, call, return_weights=False, return_log_sum_exp=True))
        results.append(combine_attended(parts))
    return join_results(results, plans, query, options).output


def _write(
    leaf: Leaf,
    entry: Entry,
    key: Tensor,
    value: Tensor,
    features: Mapping[str, Tensor],
    columns: Mapping[str, Tensor],
    index: Tensor,
    kept: Tensor,
) -> Entry:
    """Write the key and value (B, m, 1, H) of the token at `index` (B,) to an entry, in rows `kept` (B, 1).

    Its features and the entries of features are int32 (B, m, 1) by name.
    """
    num_slots = shape(entry["key"])[2]
    token = TokenInfo(index[:, None], {name: x[..., 0] for name, x in features.items()})
    at, kept_slot = cache_policy(leaf).slot(token, num_slots)
    at = in_range(at, num_slots)  # a slot beyond the last one would be one of the next head
    new = {"key": key, "value": value, "position": index[:, None] - EMPTY}
    new |= {name: x[..., 0] for name, x in columns.items()}
    return {**entry, **{name: write_slot(entry[name], x, at, merge(kept_slot, kept)) for name, x in new.items()}}


def _read(
    leaf: Leaf, entry: Entry, features: Mapping[int, TokenFeatures], selectors: Selectors, index: Tensor
) -> ReadSlots:
    """Return the `ReadSlots` of the query at `index` (B,), given the features of the token for each leaf by index."""
    policy, (_, heads, num_slots, _) = cache_policy(leaf), shape(entry["key"])
    own = {} if leaf.index not in features else {name: x[..., 0] for name, x in features[leaf.index].query.items()}
    at = policy.read(TokenInfo(index[:, None], own), num_slots)
    if policy.shares_reads and at is not None:
        at = take_key_heads(at, heads)

    def rows(name):
        return entry[name] if at is None else take_positions(entry[name], at)

    def numbers(name):
        return entry[name] if at is None else take_positions(entry[name][..., None], at)[..., 0]

    positions, read = numbers("position") + EMPTY, {}
    for each in (leaf, *leaf.excluded):
        of_query = features[each.index].query if each.index in features else {}
        selector = selectors[each.index]
        names = () if selector is None else selector.key_features
        read[each.index] = TokenFeatures(of_query, {name: numbers(f"{name}_{each.index}") for name in names})
    return ReadSlots(rows("key"), rows("value"), positions, positions > EMPTY, read)


def cross_cache(
    plans: Iterable[HeadPlan],
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    selectors: Selectors,
    heads: Tensor,
) -> Cache:
    """Return the cross-attention cache of a source sequence.

    Args:
        plans: of `plan_heads`.
        key: (B, M, S, H), rotated by positions.
        value: (B, M, S, Hv).
        mask: bool (B, S), False for masked keys; or None.
        selectors: for each leaf its `Selector`, or None.
        heads: (B, M, S, H), keys as selectors compare them, see `SelectionInputs`.
    """
    cache = {}
    for plan in plans:
        own_key, own_value, own_heads = (take_heads(x, plan.key_heads) for x in (key, value, heads))
        for leaf in plan.leaves:
            selector = selectors[leaf.index]
            selected = None if selector is None else selector.select_keys(own_heads, mask)
            cache[entry_name(leaf)] = leaf.pattern.cross_cache().entry(own_key, own_value, mask, selected)
    return cache


def decode_cross_pattern(
    plans: Sequence[HeadPlan],
    cache: Cache,
    query: Tensor,
    selectors: Selectors,
    heads: Tensor,
    index: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """Compute attention of one query per row to the source sequence, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        cache: of `cross_cache`.
        query: scaled queries (B, N, 1, H), not rotated.
        selectors: for each leaf its `Selector`, or None.
        heads: (B, N, 1, H), queries as selectors compare them, see `SelectionInputs`.
        index: int32 (B,), the positions of the queries in their sequence.
        options: an `AttentionOptions`.
    """
    groups = _assign(plans, selectors, heads, index)
    rotated = options.position.rotate(query, index[:, None, None])

    def read(leaf):
        return _read_cross(leaf, cache, groups, index)

    return attend_read(plans, query, rotated, read, index, options, causal=False)


def _assign(
    plans: Sequence[HeadPlan], selectors: Selectors, heads: Tensor, index: Tensor
) -> Mapping[int, Tensor | None]:
    """Return the groups of the queries, int32 (B, n, 1), for each leaf by index, None for leaves without a selector."""
    groups: dict[int, Tensor | None] = {}
    for plan in plans:
        own = take_heads(heads, plan.heads)
        for leaf in plan.leaves:
            selector = selectors[leaf.index]
            groups[leaf.index] = None if selector is None else selector.assign(own, index[:, None])
    return groups


def _read_cross(leaf: Leaf, cache: Cache, groups: Mapping[int, Tensor | None], index: Tensor) -> ReadSlots:
    """Return the `ReadSlots` of the queries at `index` (B,)."""
    queries = {
        each.index: each.pattern.cross_cache().query(cache[entry_name(each)], groups[each.index], index)
        for each in (leaf, *leaf.excluded)
    }
    found = leaf.pattern.cross_cache().read(cache[entry_name(leaf)], TokenInfo(index[:, None], queries[leaf.index]))
    features = {}
    for each in (leaf, *leaf.excluded):
        entry, names = cache[entry_name(each)], each.pattern.cross_cache().names
        known = {name: take_positions(entry[name][..., None], found.positions)[..., 0] for name in names}
        known |= found.features if each is leaf else {}
        features[each.index] = TokenFeatures({name: x[..., None] for name, x in queries[each.index].items()}, known)
    return ReadSlots(found.key, found.value, found.positions, found.exists, features)
