"""KV caches: creation, new tokens and rewinding.

A cache is a dictionary with an entry for each leaf of the pattern, "part_0", "part_1", ...: "key" (B, m, S, H) of its m
heads of keys, rotated by positions, "value" (B, m, S, Hv), "position" int32 (B, 1 or m, S), minus `EMPTY`, the features
of keys in mask rules, such as "group_0" and "rank_0" for leaf 0, and the state of the leaf's selector. With successor
values, key j is stored at the position j + 1 of its value, and "last_key" (B, m, 1, H) is the key of the last
token, whose value is not yet known.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from keras import ops

from tf_sparse_attention.ops.gather import rewrite_slots, take_rows, write_slots
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.patterns.cache_policies import (
    EMPTY,
    CachePolicy,
    dequantize_rows,
    find_position,
    quantize_rows,
)
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, slice_inputs, take_heads
from tf_sparse_attention.patterns.selection import NewTokens, SelectionInputs, Selector, TokenInfo
from tf_sparse_attention.types import DType, Size, Tensor

MAX_SCATTERED = 32  # most new tokens that a scatter writes, whose rows XLA writes one by one on CPUs
ROWS = ("key", "value")  # a quantized cache also has "key_scale" and "value_scale"
NUM_TOKENS = "num_tokens"  # in the cache of a layer: tokens per row, int32 (B,), -1 after an invalid extension
LONGEST = "longest"  # in the cache of a layer with `rewind`: the largest number of tokens so far, int32 (B,)
STREAMING = "streaming"  # marks the cache of a layer with `positions_in_cache`: zeros, int32 (B,)

Entry: TypeAlias = dict[str, Tensor]
Cache: TypeAlias = dict[str, Entry]  # the cache of a layer has `NUM_TOKENS` as well
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
    rewind: int = 0,
    is_quantized: bool = False,
) -> Cache:
    """Return the cache before the first token.

    Args:
        plans: of `plan_heads`, for a pattern with a cache.
        batch_size: B, an integer or a scalar tensor.
        sizes: pair (H, Hv) of the channels of keys and values.
        max_length: the largest number of tokens of a sequence, an integer or a scalar tensor.
        dtype: dtype of keys and values.
        selectors: for each leaf its `Selector`, or None.
        rewind: number of tokens that `rewind_cache` can remove. Default 0.
        is_quantized: whether keys and values are int8, with a scale per head and slot. Default False.
    """
    cache = {}
    for plan in plans:
        heads = len(plan.key_heads)
        for leaf in plan.leaves:
            slots = cache_policy(leaf).with_spare(rewind).num_slots(max_length)
            selector = selectors[leaf.index]
            stored = "int8" if is_quantized else dtype
            entry = {
                name: ops.zeros((batch_size, heads, slots, size), dtype=stored)
                for name, size in zip(ROWS, sizes, strict=True)
            }
            if is_quantized:
                entry |= {f"{name}_scale": ops.zeros((batch_size, heads, slots), dtype="float32") for name in ROWS}
            entry |= {} if selector is None else selector.init(entry)
            shared = 1 if selector is None else heads
            entry["position"] = ops.zeros((batch_size, shared, slots), dtype="int32")
            for name in feature_names(leaf, selectors):
                entry[name] = ops.zeros((batch_size, heads, slots), dtype="int32")
            if leaf.reads_successors:
                entry["last_key"] = ops.zeros((batch_size, heads, 1, sizes[0]), dtype=dtype)
            cache[entry_name(leaf)] = entry
    return cache


def feature_names(leaf: Leaf, selectors: Selectors) -> dict[str, tuple[int, str]]:
    """Return the key-feature entries of a leaf and its excluded leaves: (leaf index, feature) by entry name."""
    leaves = {each.index: selectors[each.index] for each in (leaf, *leaf.excluded)}
    return {
        f"{name}_{index}": (index, name)
        for index, selector in leaves.items()
        if selector is not None
        for name in selector.key_features
    }


def num_removable(longest: Tensor, capacity: Size, num_visible: int) -> Tensor:
    """Return the number of tokens that can be removed from the longest sequence so far, int32 (B,).

    Args:
        longest: int32 (B,), the largest number of tokens that each row has had.
        capacity: number of tokens that are held before one is overwritten.
        num_visible: number of last tokens that the next query can see.
    """
    return ops.where(longest <= capacity, longest, ops.maximum(capacity - num_visible, 0))


def removable_tokens(plans: Iterable[HeadPlan], cache: Cache, longest: Tensor) -> list[Tensor]:
    """Return `num_removable` of each leaf whose policy reuses slots."""
    found = []
    for plan in plans:
        for leaf in plan.leaves:
            policy = cache_policy(leaf)
            if policy.num_visible is not None:
                capacity = policy.capacity(shape(cache[entry_name(leaf)]["key"])[2])
                found.append(num_removable(longest, capacity, policy.num_visible))
    return found


def rewind_cache(plans: Iterable[HeadPlan], cache: Cache, selectors: Selectors, lengths: Tensor) -> Cache:
    """Return a cache without the tokens from position `lengths` (B,) on."""
    cache, ends = dict(cache), lengths[:, None, None] - EMPTY
    for plan in plans:
        for leaf in plan.leaves:
            entry, selector = cache[entry_name(leaf)], selectors[leaf.index]
            changed = {} if selector is None else selector.rewind(entry, lengths)
            if leaf.reads_successors:  # the slot of the next position holds the key of the last token that remains
                slot, found = find_position(entry["position"], ends)
                slot, found = (ops.broadcast_to(x, (*shape(entry["key"])[:2], 1)) for x in (slot, found))
                rows = dequantize_rows(entry["key"], entry.get("key_scale"), entry["last_key"].dtype)
                changed["last_key"] = ops.where(found[..., None], take_rows(rows, slot), entry["last_key"])
            changed["position"] = ops.where(entry["position"] < ends, entry["position"], 0)
            cache[entry_name(leaf)] = {**entry, **changed}
    return cache


def has_room(plans: Iterable[HeadPlan], cache: Cache, length: Size) -> bool | Tensor:
    """Return whether a cache has enough slots for a number of positions.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`.
        length: positions from the first token on, an integer, or int32 (B,).

    Returns:
        A boolean, or bool (B,) if `length` is a tensor or the cache holds a segment memory. True if sizes are unknown.
    """
    results = []
    for plan in plans:
        for leaf in plan.leaves:
            entry = cache[entry_name(leaf)]
            results.append(cache_policy(leaf).has_room(length + _remembered(entry), shape(entry["key"])[2]))
    all_known_hold = all(result for result in results if isinstance(result, bool))
    tensors = [result for result in results if not isinstance(result, bool)]
    return functools.reduce(ops.logical_and, tensors) if all_known_hold and tensors else all_known_hold


def has_memory(cache: Mapping[str, Any]) -> bool:
    """Return whether a cache holds a segment memory."""
    return any("remembered" in entry for entry in cache.values() if isinstance(entry, Mapping))


def _remembered(entry):
    """Return the number of positions from the first cached position of a segment memory on, 0 or int32 (B,)."""
    if "remembered" not in entry:
        return 0
    slots = shape(entry["remembered"])[1]
    return max_over(ops.where(entry["remembered"], slots - ops.arange(slots, dtype="int32"), 0), axis=1)


class NewKeys(NamedTuple):
    """The keys and values of new tokens for the cache entry of a leaf.

    Attributes:
        tokens: the `NewTokens`.
        features: int32 (B, m, q) by name, the key features of the leaf.
        written: rows of the new tokens by entry name: "key" (B, m, q, H), "value" (B, m, q, Hv), and the key features
            int32 (B, m, q) of `feature_names`.
        last_key: key of the last token (B, m, 1, H) with successor values, otherwise None.
    """

    tokens: NewTokens
    features: Mapping[str, Tensor]
    written: Mapping[str, Tensor]
    last_key: Tensor | None

    def first_token(self) -> Self:
        """Return the first new token of each row, without `last_key`."""
        features, written = ({name: x[:, :, :1] for name, x in y.items()} for y in (self.features, self.written))
        return self._replace(tokens=self.tokens.first_token(), features=features, written=written, last_key=None)


def add_tokens(
    leaf: Leaf,
    entry: Entry,
    inputs: SelectionInputs,
    value: Tensor,
    tokens: NewTokens,
    selectors: Selectors,
    added: dict[int, Mapping[str, Tensor]],
) -> tuple[Entry, NewKeys]:
    """Add new tokens to the selector of a leaf, and collect what its entry stores of them.

    Args:
        leaf: a `Leaf`.
        entry: its entry.
        inputs: the `SelectionInputs` of the new tokens.
        value: (B, m, q, Hv).
        tokens: the `NewTokens`.
        selectors: for each leaf its `Selector`, or None.
        added: for each leaf its key features; gets those of this leaf.

    Returns:
        Pair of the entry with the new state of the selector, and the `NewKeys`.
    """
    key, last_key, selector = inputs.rotated_key, None, selectors[leaf.index]
    if leaf.reads_successors:  # each value is stored with the key of the previous token
        key, last_key = tokens.shift(key, entry["last_key"])
    if selector is not None:
        state, added[leaf.index] = selector.add(entry, inputs, tokens)
        entry = {**entry, **state}
    columns = {at: added[index][name] for at, (index, name) in feature_names(leaf, selectors).items()}
    return entry, NewKeys(tokens, added.get(leaf.index, {}), {"key": key, "value": value, **columns}, last_key)


def fill_cache(
    plans: Iterable[HeadPlan],
    cache: Cache,
    value: Tensor,
    selectors: Selectors,
    inputs: SelectionInputs,
    tokens: NewTokens,
) -> Cache:
    """Add new tokens to the cache without computing attention.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`.
        value: (B, M, q, Hv).
        selectors: for each leaf its `Selector`, or None.
        inputs: the `SelectionInputs` of the tokens.
        tokens: the `NewTokens`.
    """
    cache, added = dict(cache), dict[int, Mapping[str, Tensor]]()
    for plan in plans:
        own_inputs, own_value = slice_inputs(plan, inputs), take_heads(value, plan.key_heads)
        for leaf in plan.leaves:
            name = entry_name(leaf)
            entry, new = add_tokens(leaf, cache[name], own_inputs, own_value, tokens, selectors, added)
            cache[name] = write_tokens(leaf, entry, new, selectors, use_scatter=False)
    return cache


def write_tokens(leaf: Leaf, entry: Entry, new: NewKeys, selectors: Selectors, use_scatter: bool) -> Entry:
    """Return an entry with new tokens.

    Args:
        leaf: the `Leaf` of the entry.
        entry: the entry before the tokens.
        new: the `NewKeys`.
        selectors: for each leaf its `Selector`, or None.
        use_scatter: whether to write by a scatter, which requires distinct slots per row. False: rewrite all slots.
    """
    tokens, positions = new.tokens, new.tokens.positions[:, None]
    token = TokenInfo(positions, new.features)
    written = {**_quantized(entry, new.written), "position": positions - EMPTY}
    if use_scatter:
        at, kept = cache_policy(leaf).slot(token, shape(entry["key"])[2])
        # With successor values, position 0 has no key.
        kept = merge(kept, tokens.exists[:, None], positions > 0 if leaf.reads_successors else None)
        entry = {**entry, **{name: write_slots(entry[name], x, at, kept) for name, x in written.items()}}
    else:
        at = cache_policy(leaf).slot_tokens(token, tokens, shape(entry["key"])[2])
        is_new = merge(at >= 0, at < tokens.counts[:, None, None])
        if leaf.reads_successors:
            is_new = merge(is_new, at + tokens.start[:, None, None] > 0)
        entry = {**entry, **{name: rewrite_slots(entry[name], x, at, is_new) for name, x in written.items()}}
    entry = entry if new.last_key is None else {**entry, "last_key": new.last_key}
    selector = selectors[leaf.index]
    return entry if selector is None else {**entry, **selector.complete(entry, tokens)}


def _quantized(entry: Entry, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the rows to write by entry name, in int8 with scales if the entry is quantized."""
    result = dict(written)
    for name in ROWS:
        if f"{name}_scale" in entry:
            result[name], result[f"{name}_scale"] = quantize_rows(written[name])
    return result


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
    at = ops.broadcast_to((positions + length)[None, None], (batch, 1, slots))
    is_new = at >= 0
    rows = _quantized(entry, {"key": key, "value": value})
    new = {part: rewrite_slots(entry[part], x, at, is_new) for part, x in rows.items()}
    seen = ops.logical_and(ops.take(seen, ops.maximum(at[0, 0], 0), axis=1), is_new[:, 0])
    position = ops.where(seen, positions - EMPTY, 0)[:, None]
    return {name: {**entry, **new, "position": position, "remembered": seen}}
