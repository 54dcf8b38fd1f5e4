"""Decoding that attends to another, complete sequence, whose keys and values are computed once.

The cache is a dictionary with an entry for each leaf of the pattern, see `patterns.caches`.
"""

from collections.abc import Iterable, Mapping, Sequence

from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.patterns.engine.decoding import ReadSlots, attend_read
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, take_heads
from tf_sparse_attention.patterns.engine.slots import Cache, Selectors, entry_name
from tf_sparse_attention.patterns.selection import TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Tensor


def cross_cache(
    plans: Iterable[HeadPlan],
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    selectors: Selectors,
    heads: Tensor,
) -> Cache:
    """Returns the cache of a sequence.

    Args:
        plans: of `plan_heads`.
        key: (B, M, S, H), turned by positions.
        value: (B, M, S, Hv).
        mask: bool (B, S), False for keys that no query may see; or None.
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
    """Returns attention of one query a row to the other sequence, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        cache: of `cross_cache`.
        query: scaled queries (B, N, 1, H), not turned.
        selectors: for each leaf its `Selector`, or None.
        heads: (B, N, 1, H), queries as selectors compare them, see `SelectionInputs`.
        index: int32 (B,), the positions of the queries in their own sequence.
        options: an `AttentionOptions`.
    """
    groups = _assign(plans, selectors, heads, index)
    rotated = options.position.rotate(query, index[:, None, None])
    return attend_read(plans, query, rotated, lambda leaf: _read(leaf, cache, groups, index), index, options, False)


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


def _read(leaf: Leaf, cache: Cache, groups: Mapping[int, Tensor | None], index: Tensor) -> ReadSlots:
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
        known |= found.known if each is leaf else {}
        features[each.index] = TokenFeatures({name: x[..., None] for name, x in queries[each.index].items()}, known)
    return ReadSlots(found.key, found.value, found.positions, found.exists, features)
