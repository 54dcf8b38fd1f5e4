"""Decoding that attends to another, complete sequence, whose keys and values are computed once.

The cache is a dictionary with an entry for each leaf of the pattern: "key" (B, n, S, H), turned by positions, "value"
and, if some are masked, "mask" bool (B, 1, S). Where content decides keys and values are sorted by (group, position):
"order" int32 (B, n, S) are the positions of the sorted ones; "group" and "rank" are those of the keys in their order.
"""

from collections.abc import Sequence

from keras import ops

from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.gather import stable_order, take_numbers, take_rows
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.ring import at_most, take_positions
from tf_sparse_attention.patterns.caches import GroupRun
from tf_sparse_attention.patterns.engine.attending import AttentionOptions
from tf_sparse_attention.patterns.engine.decoding import CachedKeys, attend_cached
from tf_sparse_attention.patterns.engine.plan import Leaf, leaves_with_heads, plan_heads
from tf_sparse_attention.patterns.engine.slots import Cache, Entry, content_leaves, entry_name
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


def cross_cache(
    pattern: Pattern, key: Tensor, value: Tensor, mask: Tensor | None, groups: Sequence[Tensor | None]
) -> Cache:
    """Returns the cache of a sequence.

    Args:
        pattern: a `Pattern`.
        key: (B, N, S, H), turned by positions.
        value: (B, N, S, Hv).
        mask: bool (B, S), False for keys that no query may see; or None.
        groups: for each leaf the groups of the keys, int32 (B, n, S) in 0 .. K - 1, None of one that goes by positions.
    """
    leaves = leaves_with_heads(plan_heads(pattern, key.shape[1]), key, value)
    return {
        entry_name(leaf): _entry(leaf, own_key, own_value, mask, groups[leaf.index])
        for leaf, own_key, own_value in leaves
    }


def _entry(leaf: Leaf, key: Tensor, value: Tensor, mask: Tensor | None, groups: Tensor | None) -> Entry:
    if not leaf.pattern.by_content:
        entry = {"key": key, "value": value}
        return entry if mask is None else {**entry, "mask": mask[:, None]}
    if mask is not None:  # masked keys are in no group
        groups = ops.where(mask[:, None], groups, leaf.pattern.num_groups)
    order, inverse = stable_order(groups)
    rows = {"key": take_rows(key, order), "value": take_rows(value, order)}
    return {**rows, "order": order, "group": groups, "rank": inverse}


def decode_cross_pattern(
    pattern: Pattern,
    cache: Cache,
    query: Tensor,
    groups: Sequence[Tensor | None],
    index: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """Returns attention of one query a row to the other sequence, (B, N, 1, Hv).

    Args:
        pattern: a `Pattern`.
        cache: of `cross_cache`.
        query: scaled queries (B, N, 1, H), not turned.
        groups: for each leaf the groups of the queries, int32 (B, n, 1), None of one that goes by positions.
        index: int32 (B,), the positions of the queries in their own sequence.
        options: an `AttentionOptions`.
    """
    turned = options.position.rotate(query, index[:, None, None])
    plans = plan_heads(pattern, query.shape[1])

    def read(leaf):
        places = {
            each.index: _query_place(each, cache[entry_name(each)], groups[each.index], index)
            for each in (leaf, *leaf.excluded)
        }
        return places, _read(leaf, cache, places[leaf.index])

    return attend_cached(plans, query, turned, read, options, causal=False)


def _query_place(leaf, entry, group, index):
    """Returns the `Place` of the query, (B, 1 or n)."""
    if not leaf.pattern.by_content:
        return Place(index[:, None])
    groups = entry["group"]
    earlier = ops.arange(shape(groups)[-1], dtype="int32") <= index[:, None, None]
    passed = ops.logical_or(groups < group, ops.logical_and(groups == group, earlier))
    last = ops.sum(ops.cast(passed, "int32"), axis=-1) - 1
    return Place(index[:, None], 0, {"group": group[..., 0], "rank": last})


def _read(leaf: Leaf, cache: Cache, place: Place) -> CachedKeys:
    """Returns the `CachedKeys` that a query at a `Place` reads: a run of positions or of sorted keys, or all."""
    entry, policy = cache[entry_name(leaf)], leaf.pattern.cross_cache()
    length = shape(entry["key"])[2]
    if isinstance(policy, GroupRun):
        size = at_most(policy.size, length)
        at = place.rank[..., None] + ops.arange(1 - size, size, dtype="int32")
        inside = ops.logical_and(at >= 0, at < length)
        positions = take_numbers(entry["order"], in_range(at, length))
    elif policy is None or (isinstance(length, int) and length <= policy.size):
        at, inside = None, ops.ones((1, 1, 1), "bool")
        positions = ops.arange(length, dtype="int32")[None, None]
    else:
        at = positions = policy.first(place.position[..., None]) + ops.arange(policy.size, dtype="int32")
        inside = ops.logical_and(at >= 0, at < length)
    key, value = (entry[name] if at is None else take_positions(entry[name], at) for name in ("key", "value"))
    mask = entry.get("mask")
    if mask is not None and at is not None:
        mask = take_numbers(mask, in_range(at, length))
    places = {}
    for each in (leaf, *leaf.excluded):
        known = {}
        if each in content_leaves(leaf):
            own, heads = cache[entry_name(each)], shape(key)[1]
            rows = in_range(ops.broadcast_to(positions, (shape(key)[0], heads, shape(positions)[-1])), length)
            known = {name: take_numbers(own[name], rows) for name in ("group", "rank")}
        places[each.index] = Place(positions, 0, known)
    return CachedKeys(key, value, places, merge(inside, mask))
