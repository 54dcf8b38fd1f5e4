"""KV caches: the slots for keys and values, empty and filled by a prompt.

A cache is a dictionary with an entry for each leaf of the pattern, "part_0", "part_1", ...: "key" (B, m, S, H) of its m
heads of keys, rotated by positions, "value" (B, m, S, Hv), "position" int32 (B, 1 or m, S), minus `EMPTY`, the features
of keys in mask rules, such as "group_0" and "rank_0" for leaf 0, and the state of the leaf's selector. With successor
values, key j is stored at the position j + 1 of its value, and "last_key" (B, m, 1, H) is the key of the last
token, whose value is not yet known.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from keras import ops

from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.ops.shapes import max_over, shape, shift_right
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, slice_inputs, take_heads
from tf_sparse_attention.patterns.selection import SelectionInputs, Selector, TokenInfo
from tf_sparse_attention.types import DType, Size, Tensor

# The position of an empty slot, less than any position of a token. Caches store positions minus this number, so that an
# empty cache is all zeros: some export formats initialize state with zeros.
EMPTY = -(2**30)

NUM_TOKENS = "num_tokens"  # in the cache of a layer: tokens per row, int32 (B,), -1 after an invalid prompt
UNROTATED = "unrotated"  # name in the entries of a cache with unrotated keys, whose rotation counts slots

Entry: TypeAlias = dict[str, Tensor]
Cache: TypeAlias = dict[str, Entry]  # the cache of a layer has `NUM_TOKENS`, too
Selectors: TypeAlias = Sequence[Selector | None]  # by the index of a leaf


def entry_name(leaf: Leaf) -> str:
    """Return the name of the cache entry of a leaf."""
    return f"part_{leaf.index}"


def cache_policy(leaf: Leaf) -> CachePolicy:
    """Return the cache policy of a leaf, of a pattern that has a cache."""
    return leaf.pattern.cache()


def empty_cache(
    plans: Sequence[HeadPlan],
    batch_size: Size,
    sizes: tuple[int, int],
    max_length: Size,
    dtype: DType,
    selectors: Selectors,
) -> Cache:
    """Return the cache before the first token.

    Args:
        plans: of `plan_heads`, for a pattern with a cache.
        batch_size: B, an integer or a scalar tensor.
        sizes: pair (H, Hv) of the channels of keys and values.
        max_length: the largest number of tokens of a sequence, an integer or a scalar tensor.
        dtype: dtype of keys and values.
        selectors: for each leaf its `Selector`, or None.
    """
    cache = {}
    for plan in plans:
        heads = len(plan.key_heads)
        for leaf in plan.leaves:
            slots, selector = cache_policy(leaf).num_slots(max_length), selectors[leaf.index]
            entry = {
                name: ops.zeros((batch_size, heads, slots, size), dtype=dtype)
                for name, size in zip(("key", "value"), sizes, strict=True)
            }
            entry |= {} if selector is None else selector.init(entry["key"])
            shared = 1 if selector is None else heads
            entry["position"] = ops.zeros((batch_size, shared, slots), dtype="int32")
            for name in feature_names(leaf, selectors):
                entry[name] = ops.zeros((batch_size, heads, slots), dtype="int32")
            if leaf.reads_successors:
                entry["last_key"] = ops.zeros((batch_size, heads, 1, sizes[0]), dtype=dtype)
            cache[entry_name(leaf)] = entry
    return cache


def feature_names(leaf: Leaf, selectors: Selectors) -> dict[str, tuple[int, str]]:
    """Return the entries of key features of a leaf and of those that it excludes: leaf and feature by entry name."""
    leaves = {each.index: selectors[each.index] for each in (leaf, *leaf.excluded)}
    return {
        f"{name}_{index}": (index, name)
        for index, selector in leaves.items()
        if selector is not None
        for name in selector.key_features
    }


def has_room(plans: Iterable[HeadPlan], cache: Cache, length: Size) -> bool | Tensor:
    """Return whether a cache has enough slots for a number of positions.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`.
        length: positions from the first token on, an integer, or int32 (B,).

    Returns:
        A boolean, or bool (B,) if `length` is a tensor or the cache holds a segment memory. True if it is unknown.
    """
    results = []
    for plan in plans:
        for leaf in plan.leaves:
            entry = cache[entry_name(leaf)]
            results.append(cache_policy(leaf).has_room(length + _remembered(entry), shape(entry["key"])[2]))
    all_known_hold = all(result for result in results if isinstance(result, bool))
    tensors = [result for result in results if not isinstance(result, bool)]
    return functools.reduce(ops.logical_and, tensors) if all_known_hold and tensors else all_known_hold


def is_unrotated(cache: Mapping[str, Any]) -> bool:
    """Return whether the cache of a layer holds unrotated keys."""
    return any(UNROTATED in entry for entry in cache.values() if isinstance(entry, Mapping))


def memory_entry(cache: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    """Return the entry of a cache that holds a segment memory, or None."""
    return next((entry for entry in cache.values() if isinstance(entry, Mapping) and "remembered" in entry), None)


def _remembered(entry):
    """Return the number of positions from the first cached position of a segment memory on, 0 or int32 (B,)."""
    if "remembered" not in entry:
        return 0
    slots = shape(entry["remembered"])[1]
    return max_over(ops.where(entry["remembered"], slots - ops.arange(slots, dtype="int32"), 0), axis=1)


def fill_cache(
    plans: Iterable[HeadPlan],
    cache: Cache,
    key: Tensor,
    value: Tensor,
    selectors: Selectors,
    inputs: SelectionInputs,
    lengths: Tensor,
) -> Cache:
    """Return the cache after a prompt.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, with or without a segment memory.
        key: (B, M, T, H), as the cache holds them.
        value: (B, M, T, Hv).
        selectors: for each leaf its `Selector`, or None.
        inputs: the `SelectionInputs` of the prompt, whose keys are not None where there are selectors.
        lengths: int32 (B,), number of tokens per row.
    """
    tokens = ops.arange(shape(key)[2], dtype="int32")[None, None]
    cache, features = dict(cache), {}
    for plan in plans:
        own_inputs = slice_inputs(plan, inputs)
        keys, own_value = (take_heads(x, plan.key_heads) for x in (key, value))
        for leaf in plan.leaves:
            entry, own_key, selector = dict(cache[entry_name(leaf)]), keys, selectors[leaf.index]
            if leaf.reads_successors:
                last = ops.broadcast_to(ops.maximum(lengths - 1, 0)[:, None, None], (*shape(keys)[:2], 1))
                entry["last_key"] = ops.cast(take_positions(keys, last), entry["key"].dtype)
                own_key = shift_right(keys, -2)
            if selector is not None:
                state, features[leaf.index] = selector.fill(entry, own_inputs, lengths)
                entry |= state
            policy, token = cache_policy(leaf), TokenInfo(tokens, features.get(leaf.index, {}))
            positions = policy.slot_contents(token, lengths, shape(entry["key"])[2])
            if leaf.reads_successors:  # no token comes before the first
                positions = ops.where(positions > 0, positions, -1)
            columns = {at: features[index][name] for at, (index, name) in feature_names(leaf, selectors).items()}
            cache[entry_name(leaf)] = _fill(entry, own_key, own_value, positions, columns)
    return cache


def _fill(entry: Entry, key: Tensor, value: Tensor, positions: Tensor, columns: Mapping[str, Tensor]) -> Entry:
    """Write a sequence to an entry: slot s gets the token at `positions` (B, 1 or n, S), if not negative."""
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
    """Write a segment memory to an empty cache. Its last token has position -1.

    Args:
        cache: of `empty_cache` for a pattern with `takes_memory`, one leaf that keeps the last positions.
        key: (B, M, L, H), rotated by positions.
        value: (B, M, L, Hv).
        seen: bool (B, L), False for empty positions.

    Returns:
        The cache, whose entry has "remembered", bool (B, S), True for slots with a token of the memory.
    """
    (name, entry), length = *cache.items(), shape(key)[2]
    batch, _, slots = shape(entry["position"])
    positions = ops.arange(slots, dtype="int32") - slots  # slot s holds position s - S
    index = ops.broadcast_to((positions + length)[None, None], (batch, 1, slots))
    entry = _fill(entry, key, value, index, {})
    seen = ops.logical_and(ops.take(seen, ops.maximum(index[0, 0], 0), axis=1), index[:, 0] >= 0)
    return {name: {**entry, "position": ops.where(seen, positions - EMPTY, 0)[:, None], "remembered": seen}}
