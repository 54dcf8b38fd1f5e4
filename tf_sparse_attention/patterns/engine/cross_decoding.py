"""Decoding that attends to another, complete sequence, whose keys and values are computed once.

The cache is a dictionary with an entry for each leaf of the pattern, see `patterns.cross_caches`.
"""

from collections.abc import Iterable, Sequence

from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.patterns.engine.decoding import CachedKeys, attend_cached
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, leaves_with_heads
from tf_sparse_attention.patterns.engine.slots import Cache, entry_name
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


def cross_cache(
    plans: Iterable[HeadPlan],
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    groups: Sequence[Tensor | Members | None],
) -> Cache:
    """Returns the cache of a sequence.

    Args:
        plans: of `plan_heads`.
        key: (B, M, S, H), turned by positions.
        value: (B, M, S, Hv).
        mask: bool (B, S), False for keys that no query may see; or None.
        groups: for each leaf the groups of the keys, int32 (B, n, S) in 0 .. K - 1, or their `Members` where the groups
            choose keys; None of one that goes by positions.
    """
    leaves = leaves_with_heads(plans, key, value)
    return {
        entry_name(leaf): leaf.pattern.cross_cache().entry(own_key, own_value, mask, groups[leaf.index])
        for leaf, own_key, own_value in leaves
    }


def decode_cross_pattern(
    plans: Sequence[HeadPlan],
    cache: Cache,
    query: Tensor,
    groups: Sequence[Tensor | None],
    index: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """Returns attention of one query a row to the other sequence, (B, N, 1, Hv).

    Args:
        plans: of `plan_heads`.
        cache: of `cross_cache`.
        query: scaled queries (B, N, 1, H), not turned.
        groups: for each leaf the groups of the queries, int32 (B, n, 1), None of one that goes by positions.
        index: int32 (B,), the positions of the queries in their own sequence.
        options: an `AttentionOptions`.
    """
    turned = options.position.rotate(query, index[:, None, None])

    def read(leaf):
        places = {
            each.index: Place(
                index[:, None],
                0,
                each.pattern.cross_cache().query(cache[entry_name(each)], groups[each.index], index),
            )
            for each in (leaf, *leaf.excluded)
        }
        return places, _read(leaf, cache, places[leaf.index])

    return attend_cached(plans, query, turned, read, options, causal=False)


def _read(leaf: Leaf, cache: Cache, place: Place) -> CachedKeys:
    """Returns the `CachedKeys` that a query at a `Place` reads."""
    found, places = leaf.pattern.cross_cache().read(cache[entry_name(leaf)], place), {}
    for each in (leaf, *leaf.excluded):
        entry, names = cache[entry_name(each)], each.pattern.cross_cache().names
        known = {name: take_positions(entry[name][..., None], found.positions)[..., 0] for name in names}
        places[each.index] = Place(found.positions, 0, {**known, **found.known} if each is leaf else known)
    return CachedKeys(found.key, found.value, places, found.exists)
