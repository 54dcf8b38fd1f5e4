"""Decoding token by token under any pattern: the slots that keep keys and values, and attention of one query to them.

A cache is a dictionary with an entry for each leaf of the pattern, "part_0", "part_1" ..: "key" (B, n, S, H), turned by
positions, "value" (B, n, S, Hv), "position" int32 (B, 1 or n, S), minus `EMPTY`, and where content decides "count" int32
(B, n, K), how many tokens each group has had, and "group_i" and "rank_i" of each key in the groups of leaf i.
"""

from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.attend import Attended, attend, attend_shared_keys, combine_attended
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.gather import stable_order, take_numbers
from tf_sparse_attention.ops.groups import with_self_bias
from tf_sparse_attention.ops.masks import merge, negate
from tf_sparse_attention.ops.positions import Distances, NoPosition
from tf_sparse_attention.ops.ring import take_positions, write_slot
from tf_sparse_attention.patterns.caches import group_counts
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.patterns.plan import as_slice, join_heads, plan_heads, take_heads

# The position of a slot that holds nothing, less than any real one. Caches hold positions minus this number, so that an
# empty cache is zeros, as formats that start the state of a program from zeros want it.
EMPTY = -(2**30)


class DecodingOptions(NamedTuple):
    """What a layer adds to its pattern when it decodes, see `attend_pattern`."""

    position: Any = NoPosition()
    span: Any = None
    hide_self: Any = None
    persistent: Any = None

    def of_heads(self, heads):
        """Returns the options of the heads that a range says."""
        own = as_slice(heads)
        span = None if self.span is None else self.span.of_heads(own)
        return self._replace(position=self.position.of_heads(own), span=span)


class CachedKeys(NamedTuple):
    """The keys that a query reads from a cache.

    Attributes:
        key: (B, n, s, H), turned by positions.
        value: (B, n, s, Hv).
        places: for each leaf whose rule is asked of them the `Place` of the keys, (B, 1 or n, s), by its index.
        exists: bool (B, 1 or n, s), where a slot holds a key.
    """

    key: Any
    value: Any
    places: Any
    exists: Any


def entry_name(leaf):
    """Returns the name of a leaf's entry in a cache."""
    return f"part_{leaf.index}"


def content_leaves(leaf):
    """Returns those of a leaf and the leaves that it excludes that go by content."""
    return [each for each in (leaf, *leaf.excluded) if each.pattern.by_content]


def empty_cache(pattern, batch_size, num_heads, sizes, max_length, dtype):
    """Returns the cache before the first token.

    Args:
        pattern: a `Pattern` that can decode.
        batch_size: B, an integer or a scalar tensor.
        num_heads: N.
        sizes: pair (H, Hv) of the channels of keys and values.
        max_length: the most tokens a sequence can have, an integer or a scalar tensor.
        dtype: of keys and values.
    """
    cache = {}
    for plan in plan_heads(pattern, num_heads):
        heads = len(plan.heads)
        for leaf in plan.leaves:
            slots = leaf.pattern.cache().num_slots(max_length)
            by_content = content_leaves(leaf)
            entry = {
                name: ops.zeros((batch_size, heads, slots, size), dtype=dtype)
                for name, size in zip(("key", "value"), sizes, strict=True)
            }
            shared = heads if leaf.pattern.by_content else 1
            entry["position"] = ops.zeros((batch_size, shared, slots), dtype="int32")
            for each in by_content:
                for name in ("group", "rank"):
                    entry[f"{name}_{each.index}"] = ops.zeros((batch_size, heads, slots), dtype="int32")
            if leaf.pattern.by_content:
                entry["count"] = ops.zeros((batch_size, heads, leaf.pattern.num_groups), dtype="int32")
            cache[entry_name(leaf)] = entry
    return cache


def fill_cache(pattern, cache, key, value, groups, lengths):
    """Returns the cache after a prompt.

    Args:
        pattern: a `Pattern`.
        cache: of `empty_cache`, perhaps with a memory.
        key: (B, N, T, H), turned by positions.
        value: (B, N, T, Hv).
        groups: for each leaf the groups of the keys, int32 (B, n, T) in 0 .. K - 1, None of one that goes by positions.
        lengths: int32 (B,), tokens of each row.
    """
    exists = ops.arange(shape(key)[2], dtype="int32")[None, None] < lengths[:, None, None]
    cache, known = dict(cache), {}
    plans = plan_heads(pattern, key.shape[1])
    for leaf in (leaf for plan in plans for leaf in plan.leaves if leaf.pattern.by_content):
        own = ops.where(exists, groups[leaf.index], leaf.pattern.num_groups)
        count = group_counts(own, leaf.pattern.num_groups)
        known[leaf.index] = {"group": own, "rank": _ranks_in_groups(own, count)}
        cache[entry_name(leaf)] = {**cache[entry_name(leaf)], "count": count}
    for plan in plans:
        own = take_heads(key, plan.heads), take_heads(value, plan.heads)
        for leaf in plan.leaves:
            columns = {f"{name}_{i}": x for i, numbers in _known_to(leaf, known) for name, x in numbers.items()}
            entry, slots = cache[entry_name(leaf)], shape(cache[entry_name(leaf)]["key"])[2]
            place = Place(ops.arange(shape(key)[2], dtype="int32")[None, None], 0, known.get(leaf.index, {}))
            positions = leaf.pattern.cache().held(place, lengths, slots)
            cache[entry_name(leaf)] = _fill(entry, *own, positions, columns)
    return cache


def _known_to(leaf, known):
    return [(each.index, known[each.index]) for each in content_leaves(leaf)]


def _ranks_in_groups(groups, count):
    """Returns how many tokens of its group come before each token, int32 (B, n, T)."""
    _, inverse = stable_order(groups)
    first = ops.cumsum(count, axis=-1)
    first = ops.pad(first, [(0, 0), (0, 0), (1, 0)])  # where each group begins in the order, those of no group last
    return inverse - take_numbers(first, groups)


def _fill(entry, key, value, positions, columns):
    """Returns an entry that holds a sequence at `positions` (B, 1 or n, S), what it held where they are negative."""
    batch, shared, slots = shape(entry["position"])
    positions = ops.broadcast_to(positions, (batch, shared, slots))
    is_new = positions >= 0
    new = {"key": take_positions(key, positions), "value": take_positions(value, positions)}
    new = {name: ops.where(is_new[..., None], ops.cast(x, entry[name].dtype), entry[name]) for name, x in new.items()}
    heads = shape(entry["key"])[1]
    rows = ops.broadcast_to(positions, (batch, heads, slots))
    for name, x in columns.items():
        taken = take_positions(x[..., None], rows)[..., 0]
        new[name] = ops.where(is_new, taken, entry[name])
    return {**entry, **new, "position": ops.where(is_new, positions - EMPTY, entry["position"])}


def fill_memory(cache, key, value, seen):
    """Returns the cache of a pattern that takes memory with earlier text in it, the position of whose last token is -1.

    Args:
        cache: of `empty_cache` for a pattern with `takes_memory`, which is one leaf that keeps the last positions.
        key: (B, N, L, H), turned by positions.
        value: (B, N, L, Hv).
        seen: bool (B, L), False where there is nothing.

    Returns:
        The cache, whose entry also has "remembered", bool (B, S), which slots hold something of the memory.
    """
    (name, entry), length = *cache.items(), shape(key)[2]
    batch, _, slots = shape(entry["position"])
    positions = ops.arange(slots, dtype="int32") - slots  # slot s holds position s - S
    index = ops.broadcast_to((positions + length)[None, None], (batch, 1, slots))
    entry = _fill(entry, key, value, index, {})
    seen = ops.logical_and(ops.take(seen, ops.maximum(index[0, 0], 0), axis=1), index[:, 0] >= 0)
    return {name: {**entry, "position": ops.where(seen, positions - EMPTY, 0)[:, None], "remembered": seen}}


def decode_pattern(pattern, cache, query, key, value, groups, index, options):
    """Returns attention of the next token to what the cache keeps and to itself, and the cache after it.

    Args:
        pattern: a `Pattern`.
        cache: of `empty_cache`, `fill_cache` or this function.
        query: scaled queries (B, N, 1, H), not turned by positions.
        key: keys (B, N, 1, H), not turned.
        value: values (B, N, 1, Hv).
        groups: for each leaf a pair of the groups of query and key, int32 (B, n, 1), None of one that goes by
            positions.
        index: int32 (B,), the position of the token.
        options: a `DecodingOptions`.

    Returns:
        Pair of the output (B, N, 1, Hv) and the cache.
    """
    at = index[:, None, None]
    turned, key = options.position.rotate(query, at), options.position.rotate(key, at)
    plans, cache, known = plan_heads(pattern, query.shape[1]), dict(cache), {}
    for leaf in (leaf for plan in plans for leaf in plan.leaves if leaf.pattern.by_content):
        entry = cache[entry_name(leaf)]
        known[leaf.index], count = _count(entry["count"], *groups[leaf.index])
        cache[entry_name(leaf)] = {**entry, "count": count}
    for plan in plans:
        own = take_heads(key, plan.heads), take_heads(value, plan.heads)
        for leaf in plan.leaves:
            cache[entry_name(leaf)] = _write(leaf, cache[entry_name(leaf)], *own, known, index)

    def read(leaf):
        places = _query_places(leaf, known, index)
        return places, _read(leaf, cache[entry_name(leaf)], places[leaf.index])

    return attend_cached(plans, query, turned, read, options, causal=True), cache


def attend_cached(plans, query, turned, read, options, causal):
    """Returns attention of one query a row to keys that are read from a cache, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        query: scaled queries (B, N, 1, H).
        turned: the same, turned by positions.
        read: function of a `Leaf` to the places of the query for it and for what it excludes, by index, and its
            `CachedKeys`.
        options: a `DecodingOptions`.
        causal: whether later keys are hidden.
    """
    results = []
    for plan in plans:
        own, asking = options.of_heads(plan.heads), take_heads(turned, plan.heads)
        results.append(combine_attended([_attend_leaf(leaf, asking, *read(leaf), own, causal) for leaf in plan.leaves]))
    attended = Attended(*(join_heads(list(parts), plans) for parts in zip(*results, strict=True)))
    if options.persistent is not None:
        others = attend_shared_keys(query, *options.persistent, return_log_sum_exp=True)
        attended = combine_attended([attended, others])
    return attended.output


def _attend_leaf(leaf, query, places, cached, options, causal):
    """Returns the `Attended` of one query a row (B, n, 1, H) to the `CachedKeys` of a leaf."""
    batch, heads, size = shape(cached.key)[:3]

    def of_pairs(x):
        return ops.broadcast_to(x[:, :, None, None], (batch, heads, 1, 1, size))

    own, key = places[leaf.index], cached.places[leaf.index]
    tokens = key.position - own.position[..., None]
    conditions = [cached.exists, _rule(leaf, places, cached), tokens <= 0 if causal else None]
    conditions += [negate(_rule(other, places, cached)) for other in leaf.excluded]
    if options.hide_self == "always":
        conditions.append(tokens != 0)
    ranks = key.rank - own.rank[..., None] if leaf.pattern.by_content else tokens
    distances = Distances(ranks=of_pairs(ranks), tokens=of_pairs(tokens))
    query = query[:, :, None]  # (B, n, 1, 1, H)
    bias = options.position.score_bias(query, distances)
    if options.hide_self == "unless_alone":
        bias = with_self_bias(bias, distances.tokens == 0)
    attended = attend(
        query,
        cached.key[:, :, None],
        cached.value[:, :, None],
        mask=of_pairs(merge(*conditions)),
        bias=bias,
        span=None if options.span is None else options.span.factor(distances),
        value_bias=options.position.value_bias(distances),
        return_log_sum_exp=True,
    )
    return Attended(attended.output[:, :, 0], None, attended.log_sum_exp[:, :, 0])


def _rule(leaf, places, cached):
    """Returns what the rule of a leaf says of the keys that are read, bool broadcastable to (B, n, s), or None."""
    own = places[leaf.index]
    query = Place(own.position[..., None], 0, {name: x[..., None] for name, x in own.known.items()})
    seen = leaf.pattern.visible(query, cached.places[leaf.index])
    return merge(*(seen if isinstance(seen, tuple) else (seen,)))


def _count(count, query_groups, key_groups):
    """Returns group and rank of query and key of a token, a pair of dictionaries of (B, n), and the counts after it."""
    ranks = take_numbers(count, key_groups)[..., 0]
    count = write_slot(count, ranks + 1, key_groups[..., 0])
    last = take_numbers(count, query_groups)[..., 0] - 1
    return ({"group": query_groups[..., 0], "rank": last}, {"group": key_groups[..., 0], "rank": ranks}), count


def _write(leaf, entry, key, value, known, index):
    """Returns an entry with the key and value (B, n, 1, H) of the token at `index` (B,)."""
    slots, own = shape(entry["key"])[2], known.get(leaf.index, ({}, {}))[1]
    at, kept = leaf.pattern.cache().slot(Place(index[:, None], 0, own), slots)
    new = {"key": key, "value": value, "position": index[:, None] - EMPTY}
    for each in content_leaves(leaf):
        new |= {f"{name}_{each.index}": x for name, x in known[each.index][1].items()}
    return {**entry, **{name: write_slot(entry[name], x, at, kept) for name, x in new.items()}}


def _query_places(leaf, known, index):
    """Returns the `Place` of the query for a leaf and for those that it excludes, by index, (B, 1 or n)."""
    return {each.index: Place(index[:, None], 0, known.get(each.index, ({}, {}))[0]) for each in (leaf, *leaf.excluded)}


def _read(leaf, entry, place):
    """Returns the `CachedKeys` that a query at a `Place` reads from an entry."""
    at = leaf.pattern.cache().read(place, shape(entry["key"])[2])

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
