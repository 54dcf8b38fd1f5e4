"""Decoding that attends to another, complete sequence, whose keys and values are computed once.

The cache is a dictionary with an entry for each leaf of the pattern, see `patterns.caches`.
"""

from collections.abc import Iterable, Sequence

from tf_sparse_attention.ops.gather import take_positions
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.patterns.engine.decoding import ReadSlots, attend_read
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions
from tf_sparse_attention.patterns.engine.plan import HeadPlan, Leaf, TokenFeatures, leaves_with_heads
from tf_sparse_attention.patterns.engine.slots import Cache, entry_name
from tf_sparse_attention.patterns.token_info import Place
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
    rotated = options.position.rotate(query, index[:, None, None])
    return attend_read(plans, query, rotated, lambda leaf: _read(leaf, cache, groups, index), index, options, False)


def _read(leaf: Leaf, cache: Cache, groups: Sequence[Tensor | None], index: Tensor) -> ReadSlots:
    """Return the `ReadSlots` of the queries at `index` (B,)."""
    queries = {
        each.index: each.pattern.cross_cache().query(cache[entry_name(each)], groups[each.index], index)
        for each in (leaf, *leaf.excluded)
    }
    found = leaf.pattern.cross_cache().read(cache[entry_name(leaf)], Place(index[:, None], 0, queries[leaf.index]))
    features = {}
    for each in (leaf, *leaf.excluded):
        entry, names = cache[entry_name(each)], each.pattern.cross_cache().names
        known = {name: take_positions(entry[name][..., None], found.positions)[..., 0] for name in names}
        known |= found.known if each is leaf else {}
        features[each.index] = TokenFeatures({name: x[..., None] for name, x in queries[each.index].items()}, known)
    return ReadSlots(found.key, found.value, found.positions, found.exists, features)
