"""The slots in which decoding keeps keys and values, empty and filled with a prompt.

A cache is a dictionary with an entry for each leaf of the pattern, "part_0", "part_1" ..: "key" (B, n, S, H) of its n
heads of keys, turned by positions, "value" (B, n, S, Hv), "position" int32 (B, 1 or n, S), minus `EMPTY`, and where
content decides "count" int32 (B, n, K), how many tokens each group has had, and "group_i" and "rank_i" of each key in
the groups of leaf i. A policy may keep more in it: a digest of its keys, by which queries choose among them. Where
values are those of successors a key is at the position of its value; "last_key" (B, n, 1, H) and "last_group" (B, n, 1)
are of the last token, whose successor is the next one.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from keras import ops

from tf_sparse_attention.ops.blocks import max_over, shape, shift_right
from tf_sparse_attention.ops.gather import stable_order, take_numbers, take_positions
from tf_sparse_attention.patterns.caches import CachePolicy
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, leaves_with_heads
from tf_sparse_attention.patterns.group_band import group_counts
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import DType, Size, Tensor

# The position of a slot that holds nothing, less than any real one. Caches hold positions minus this number, so that an
# empty cache is zeros, as formats that start the state of a program from zeros want it.
EMPTY = -(2**30)

Entry: TypeAlias = dict[str, Tensor]
Cache: TypeAlias = dict[str, Entry]


def entry_name(leaf: Leaf) -> str:
    """Returns the name of a leaf's entry in a cache."""
    return f"part_{leaf.index}"


def cache_policy(leaf: Leaf) -> CachePolicy:
    """Returns the cache policy of a leaf of a pattern that can decode."""
    return cast(CachePolicy, leaf.pattern.cache())


def content_leaves(leaf: Leaf) -> list[Leaf]:
    """Returns those of a leaf and the leaves that it excludes that go by content."""
    return [each for each in (leaf, *leaf.excluded) if each.pattern.by_content]


def empty_cache(
    plans: Sequence[HeadPlan], batch_size: Size, sizes: tuple[int, int], max_length: Size, dtype: DType
) -> Cache:
    """Returns the cache before the first token.

    Args:
        plans: of `plan_heads`, for a pattern that can decode.
        batch_size: B, an integer or a scalar tensor.
        sizes: pair (H, Hv) of the channels of keys and values.
        max_length: the most tokens a sequence can have, an integer or a scalar tensor.
        dtype: of keys and values.
    """
    cache = {}
    for plan in plans:
        heads = len(plan.key_heads)
        for leaf in plan.leaves:
            policy = cache_policy(leaf)
            slots = policy.num_slots(max_length)
            by_content = content_leaves(leaf)
            entry = {
                name: ops.zeros((batch_size, heads, slots, size), dtype=dtype)
                for name, size in zip(("key", "value"), sizes, strict=True)
            }
            entry |= policy.empty_digest(entry["key"])
            shared = heads if leaf.pattern.by_content or leaf.pattern.queries_choose else 1
            entry["position"] = ops.zeros((batch_size, shared, slots), dtype="int32")
            for each in by_content:
                for name in ("group", "rank"):
                    entry[f"{name}_{each.index}"] = ops.zeros((batch_size, heads, slots), dtype="int32")
            if leaf.pattern.by_content:
                entry["count"] = ops.zeros((batch_size, heads, leaf.pattern.num_groups), dtype="int32")
            if leaf.reads_successors:
                entry["last_key"] = ops.zeros((batch_size, heads, 1, sizes[0]), dtype=dtype)
                if leaf.pattern.by_content:
                    entry["last_group"] = ops.zeros((batch_size, heads, 1), dtype="int32")
            cache[entry_name(leaf)] = entry
    return cache


def holds(plans: Iterable[HeadPlan], cache: Cache, length: Size) -> bool | Tensor:
    """Returns whether a cache has the slots that so many positions need.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`.
        length: positions from the first token on, an integer, or int32 (B,).

    Returns:
        A boolean, or a tensor bool (B,) where `length` is one or a memory came before; True where it cannot be known.
    """
    results = []
    for plan in plans:
        for leaf in plan.leaves:
            entry = cache[entry_name(leaf)]
            results.append(cache_policy(leaf).holds(length + _remembered(entry), shape(entry["key"])[2]))
    all_known_hold = all(result for result in results if isinstance(result, bool))
    tensors = [result for result in results if not isinstance(result, bool)]
    return functools.reduce(ops.logical_and, tensors) if all_known_hold and tensors else all_known_hold


def _remembered(entry):
    """Returns how far before the first token the first position of a memory is that is kept: 0 or int32 (B,)."""
    if "remembered" not in entry:
        return 0
    slots = shape(entry["remembered"])[1]
    return max_over(ops.where(entry["remembered"], slots - ops.arange(slots, dtype="int32"), 0), axis=1)


def fill_cache(
    plans: Iterable[HeadPlan],
    cache: Cache,
    key: Tensor,
    value: Tensor,
    groups: Sequence[Tensor | None],
    lengths: Tensor,
) -> Cache:
    """Returns the cache after a prompt.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, perhaps with a memory.
        key: (B, M, T, H), turned by positions.
        value: (B, M, T, Hv).
        groups: for each leaf the groups of the keys, int32 (B, n, T) in 0 .. K - 1, None of one that goes by positions.
        lengths: int32 (B,), tokens of each row.
    """
    tokens = ops.arange(shape(key)[2], dtype="int32")[None, None]
    exists = tokens < lengths[:, None, None]
    cache, known = dict(cache), {}
    for leaf, own_key, own_value in leaves_with_heads(plans, key, value):
        entry, own_groups = cache[entry_name(leaf)], groups[leaf.index]
        if leaf.reads_successors:
            entry = {**entry, **_last_of(own_key, own_groups, lengths, entry["key"].dtype)}
            own_key = shift_right(own_key, -2)
            own_groups = None if own_groups is None else shift_right(own_groups, -1, leaf.pattern.num_groups)
        if leaf.pattern.by_content:
            group = ops.where(exists, own_groups, leaf.pattern.num_groups)
            count = group_counts(group, leaf.pattern.num_groups)
            known[leaf.index] = {"group": group, "rank": _ranks_in_groups(group, count)}
            entry = {**entry, "count": count}
        place = Place(tokens, 0, known.get(leaf.index, {}))
        positions = cache_policy(leaf).held(place, lengths, shape(entry["key"])[2])
        if leaf.reads_successors:  # no token comes before the first
            positions = ops.where(positions > 0, positions, -1)
        entry = {**entry, **cache_policy(leaf).digest_of_prompt(entry, own_key, lengths)}
        cache[entry_name(leaf)] = _fill(entry, own_key, own_value, positions, group_columns(leaf, known))
    return cache


def _last_of(key: Tensor, groups: Tensor | None, lengths: Tensor, dtype: DType) -> Entry:
    """Returns "last_key" and, where content decides, "last_group" of keys (B, n, T, H) and groups (B, n, T)."""
    batch, heads = shape(key)[:2]
    at = ops.broadcast_to(ops.maximum(lengths - 1, 0)[:, None, None], (batch, heads, 1))
    last = {"last_key": ops.cast(take_positions(key, at), dtype)}
    return last if groups is None else {**last, "last_group": take_numbers(groups, at)}


def group_columns(leaf: Leaf, known: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns group and rank of keys in the groups of a leaf and of those that it excludes, by their names in an entry.

    Args:
        leaf: a `Leaf`.
        known: what is known of the keys, a dictionary for each leaf that goes by content, by its index.
    """
    return {f"{name}_{each.index}": x for each in content_leaves(leaf) for name, x in known[each.index].items()}


def _ranks_in_groups(groups: Tensor, count: Tensor) -> Tensor:
    """Returns how many tokens of its group come before each token, int32 (B, n, T)."""
    _, inverse = stable_order(groups)
    first = ops.cumsum(count, axis=-1)
    first = ops.pad(first, [(0, 0), (0, 0), (1, 0)])  # where each group begins in the order, those of no group last
    return inverse - take_numbers(first, groups)


def _fill(entry: Entry, key: Tensor, value: Tensor, positions: Tensor, columns: Mapping[str, Tensor]) -> Entry:
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


def fill_memory(cache: Cache, key: Tensor, value: Tensor, seen: Tensor) -> Cache:
    """Returns the cache of a pattern that takes memory with earlier text in it, the position of whose last token is -1.

    Args:
        cache: of `empty_cache` for a pattern with `takes_memory`, which is one leaf that keeps the last positions.
        key: (B, M, L, H), turned by positions.
        value: (B, M, L, Hv).
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
