"""Decoding: attention of new tokens to cached keys and to each other, under any pattern.

New tokens are written to the cache first. Their queries then read all cached keys (`CachedKeys`, `CachedTiles`). If the
write would overwrite keys that the first new tokens attend to, the new tokens attend to the unchanged cache and to each
other. The results are merged by their log-sum-exp. Cross-attention reads the cache of a complete source sequence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from keras import ops

from tf_sparse_attention.ops.attend import Attended, combine_attended, lowest
from tf_sparse_attention.ops.gather import take_numbers, take_positions, take_rows, take_slots
from tf_sparse_attention.ops.masks import TokenMasks, merge
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import are_known, pad_axis, repeat_key_heads, shape, slice_axis, take_key_heads
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import EMPTY, Buckets, dequantize_rows
from tf_sparse_attention.patterns.engine.attention import attend_arranged, attend_plain, join_results
from tf_sparse_attention.patterns.engine.head_plans import (
    AttentionOptions,
    HeadPlan,
    Inputs,
    Leaf,
    Selections,
    slice_inputs,
    take_heads,
)
from tf_sparse_attention.patterns.engine.kv_cache import (
    MAX_SCATTERED,
    ROWS,
    Cache,
    Entry,
    Selectors,
    add_tokens,
    cache_policy,
    entry_name,
    feature_names,
    write_tokens,
)
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.pattern import Call, Offset
from tf_sparse_attention.patterns.selected_blocks import SelectedTiles
from tf_sparse_attention.patterns.selection import (
    MANY_TOKENS,
    NewTokens,
    Selection,
    SelectionInputs,
    Selector,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import DType, Size, Tensor


class ReadSlots(NamedTuple):
    """Cache slots that q queries read, in G groups: one group of all queries, or one group per query.

    Attributes:
        key: (B, M, G, s, H), rotated by positions.
        value: (B, M, G, s, Hv).
        positions: int32 (1 or B, 1 or M or N, G, s); with successor values the positions of the values. Undefined in
            empty slots.
        exists: bool, as `positions`, False in empty slots.
        features: the `TokenFeatures` of the leaf and of its excluded leaves, by leaf index: (B, n, q) of queries and
            (B, m, G, s) of keys.
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    exists: Tensor
    features: Mapping[int, TokenFeatures]


class CachedArrangement(Arrangement):
    """Base class of arrangements of new queries with cached keys. The positions of keys come from the cache.

    Args:
        leaf: the `Leaf` that the slots belong to.
        features: the `TokenFeatures` of the leaf.
    """

    def __init__(self, leaf: Leaf, features: TokenFeatures, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        self.lead = -1 if leaf.reads_successors else 0
        self._ranks = features if "rank" in features.key else None

    def causal_mask(self) -> Tensor:
        queries, keys = self.pairs()
        return keys - self.lead <= queries

    def distances(self) -> Distances:
        tokens = self.relative_positions()
        ranks = tokens - self.lead
        if self._ranks is not None:
            queries, keys = self.features(self._ranks)
            ranks = keys["rank"] - queries["rank"]
        return Distances(ranks=ranks, tokens=tokens, pairs=self.pairs)


class CachedKeys(CachedArrangement):
    """Groups of new queries with the cache slots that they read.

    Args:
        leaf: the `Leaf` that the slots belong to.
        slots: the `ReadSlots`.
        positions: int32 (B, q), the position of each query.
        num_heads: N, heads of queries.
        is_exact: see `Arrangement`.
    """

    def __init__(self, leaf: Leaf, slots: ReadSlots, positions: Tensor, num_heads: int, is_exact: bool = False) -> None:
        def spread(x):
            return x if x.shape[1] == 1 else repeat_key_heads(x, num_heads)

        super().__init__(leaf, slots.features[leaf.index], is_exact)
        _, _, num_groups, self.key_length, _ = shape(slots.key)
        self._is_one_group = isinstance(num_groups, int) and num_groups == 1
        self._queries, self._keys = self.queries(positions[:, None], -1), spread(slots.positions) + self.lead
        self._exists = spread(slots.exists)[..., None, :]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1 if self._is_one_group else axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return x  # already in groups

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.squeeze(x, axis - 1 if self._is_one_group else axis)

    def query_positions(self) -> Tensor:
        return self._queries

    def key_positions(self) -> Tensor:
        return self._keys

    def key_exists(self) -> Tensor:
        return self._exists


class NewGroup(CachedArrangement):
    """New tokens in one group, attending to each other.

    Args:
        leaf: the `Leaf`.
        features: the `TokenFeatures` of the leaf, (B, n, q) and (B, m, q).
        positions: int32 (B, q), the position of each token.
    """

    def __init__(self, leaf: Leaf, features: TokenFeatures, positions: Tensor) -> None:
        super().__init__(leaf, features)
        self.key_length, self._positions = shape(positions)[1], positions[:, None, None]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.squeeze(x, axis - 1)

    def query_positions(self) -> Tensor:
        return self._positions

    def key_positions(self) -> Tensor:
        return self._positions


class CachedTiles(CachedArrangement, SelectedTiles):
    """New queries sorted by the bucket that they read, in tiles of one bucket; see `SelectedTiles`.

    Args:
        leaf: the `Leaf` that the slots belong to.
        buckets: the `Buckets` of the queries, int32 (B, N, q, R).
        features: the `TokenFeatures` of the leaf, (B, n, q) and (B, m, S).
        positions: int32 (B, q), the position of each query.
        slot_positions: int32 (B, 1 or m, S), the position in each slot, `EMPTY` in empty slots.
        group_size: number of consecutive heads that read the same buckets.
    """

    def __init__(
        self,
        leaf: Leaf,
        buckets: Buckets,
        features: TokenFeatures,
        positions: Tensor,
        slot_positions: Tensor,
        group_size: int,
    ) -> None:
        SelectedTiles.__init__(self, buckets.indices, buckets.size, shape(slot_positions)[2], group_size)
        CachedArrangement.__init__(self, leaf, features, cache_policy(leaf).is_exact)
        self._queries, self._slot_positions = self.queries(positions[:, None], -1), slot_positions

    def _max_tiles(self, size: Size) -> Size:
        return (self._query_length * self._num_choices + (size - 1) * self._num_blocks) // size

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1 and x.shape[1] != 1:
            x = repeat_key_heads(x, self._sizes[1])
        return super().keys(x, axis)

    def query_positions(self) -> Tensor:
        return self._queries

    def key_positions(self) -> Tensor:
        return self.keys(self._slot_positions, -1) + self.lead

    def key_exists(self) -> Tensor:
        return (self.keys(self._slot_positions, -1) > EMPTY)[..., None, :]


def extend_pattern(
    plans: Sequence[HeadPlan],
    cache: Cache,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    selectors: Selectors,
    heads: tuple[Tensor, Tensor],
    tokens: NewTokens,
    options: AttentionOptions,
    max_first_position: int | None = None,
) -> tuple[Tensor, Cache]:
    """Compute attention of new tokens to the keys in the cache and to each other, and add them to the cache.

    Args:
        plans: of `plan_heads`.
        cache: of `empty_cache`, `fill_cache` or this function.
        query: scaled queries (B, N, q, H), not rotated.
        key: keys (B, M, q, H), not rotated.
        value: values (B, M, q, Hv).
        selectors: for each leaf its `Selector`, or None.
        heads: pair of queries (B, N, q, H) and keys (B, M, q, H) as selectors compare them, see `SelectionInputs`.
        tokens: the `NewTokens`.
        options: an `AttentionOptions`.
        max_first_position: limit of the positions of queries in scores with `First` keys, as in StreamingLLM (Xiao et
            al. 2024, section 3.2). None: no limit.

    Returns:
        Pair of the output (B, N, q, Hv), arbitrary for tokens that are not added, and the cache.
    """
    at = tokens.positions[:, None]
    inputs = SelectionInputs(*heads, options.position.rotate(query, at), options.position.rotate(key, at))
    query_for_first = (
        None if max_first_position is None else options.position.rotate(query, ops.minimum(at, max_first_position))
    )
    cache, added, results = dict(cache), dict[int, Mapping[str, Tensor]](), []
    selections: dict[int, Selection | TokenFeatures | None] = dict.fromkeys(range(len(selectors)))
    for plan in plans:
        own_inputs, own_value = slice_inputs(plan, inputs), take_heads(value, plan.key_heads)
        own_options, parts = options.slice_heads(plan.heads), []
        for leaf in plan.leaves:
            name, selector = entry_name(leaf), selectors[leaf.index]
            entry, new = add_tokens(leaf, cache[name], own_inputs, own_value, tokens, selectors, added)
            spare, length = cache_policy(leaf).spare(shape(entry["key"])[2]), tokens.length
            writes_first = spare is None or (length is not None and length <= spare + 1)
            if writes_first:
                use_scatter = length is not None and length <= MAX_SCATTERED
                entry = write_tokens(leaf, entry, new, selectors, use_scatter)
            if selector is not None:
                selection = selector.select_new(entry, own_inputs, tokens, added[leaf.index])
                selections[leaf.index] = _checked(selector, selection, new.features)
            is_first = query_for_first is not None and isinstance(leaf.pattern, First)
            own_query = take_heads(query_for_first, plan.heads) if is_first else own_inputs.rotated_query
            reader = Inputs(own_query, own_inputs.rotated_key, own_value, selections, TokenMasks(), own_options)
            if writes_first:
                parts += _attend_slots(leaf, entry, reader, selectors, tokens)
            else:
                # With successor values, the first token completes the pair of the last cached key and its value.
                before = (
                    write_tokens(leaf, entry, new.first_token(), selectors, use_scatter=True)
                    if leaf.reads_successors
                    else entry
                )
                parts += _attend_slots(leaf, before, reader, selectors, tokens)
                parts.append(_attend_new(leaf, reader, tokens))
                entry = write_tokens(leaf, entry, new, selectors, use_scatter=False)
            cache[name] = entry
        results.append(combine_attended(parts))
    return join_results(results, plans, query, options).output, cache


def _checked(
    selector: Selector, selection: Selection | TokenFeatures, added: Mapping[str, Tensor]
) -> Selection | TokenFeatures:
    """Return a selection of new tokens, or raise a `ValueError` for features of the wrong rank."""
    for name, x in (*selection.features().query.items(), *added.items()):
        if len(x.shape) != 3:
            raise ValueError(
                f"`add` and `select_new` of {type(selector).__name__} must return features of queries (B, n, q) and "
                f"keys (B, m, q). Received: {name!r} of shape {tuple(x.shape)}."
            )
    return selection


def _attend_slots(leaf: Leaf, entry: Entry, inputs: Inputs, selectors: Selectors, tokens: NewTokens) -> list[Attended]:
    """Compute attention of new queries to the slots of an entry. Returns the parts of one softmax."""
    (batch, num_heads, length, _), (_, key_heads, num_slots, _) = shape(inputs.query), shape(entry["key"])
    policy, positions, features = cache_policy(leaf), tokens.positions, _query_features(leaf, inputs.selections)
    extra = policy.extra_slots(entry)
    own = features[leaf.index]
    buckets = policy.buckets(TokenInfo(positions[:, None], own), num_slots, inputs.selections[leaf.index])
    options = inputs.options._replace(hide_self=None) if leaf.reads_successors else inputs.options

    def attend(arrangement, queries, key, value, known):
        given = Inputs(queries, key, value, known, TokenMasks(), options)
        call = Call(batch, shape(queries)[2], arrangement.key_length, causal=True)
        return attend_plain(arrangement, leaf, given, call, return_weights=False, return_log_sum_exp=True)

    parts = [
        attend(arrangement, inputs.query, mean_key, mean_value, inputs.selections)
        for arrangement, mean_key, mean_value in policy.estimates(entry, inputs.selections[leaf.index], positions)
    ]
    if buckets is not None and are_known(length, buckets.size) and length >= MANY_TOKENS:
        if extra is not None:
            entry = {**entry, **{name: _with_extra(entry[name], extra) for name in _columns(leaf, entry, selectors)}}
        known = _slot_features(leaf, features, selectors, lambda name: entry[name])
        group_size = num_heads // key_heads if policy.shares_reads or buckets.indices.shape[1] == 1 else 1
        indices = ops.broadcast_to(buckets.indices, (batch, num_heads, length, buckets.indices.shape[-1]))
        slot_positions = entry["position"] + EMPTY
        tiles = CachedTiles(
            leaf, buckets._replace(indices=indices), known[leaf.index], positions, slot_positions, group_size
        )
        key, value = (dequantize_rows(entry[name], entry.get(f"{name}_scale"), inputs.query.dtype) for name in ROWS)
        return [*parts, tiles.merge_choices(attend(tiles, inputs.query, key, value, known))]
    # New query i attends to no key of a ring if i >= `num_slots`.
    visible = length
    if buckets is None and policy.spare(num_slots) is not None and are_known(length, num_slots):
        visible = min(length, num_slots)
        positions, own = positions[:, :visible], {name: x[..., :visible] for name, x in own.items()}
        features = {index: {name: x[..., :visible] for name, x in y.items()} for index, y in features.items()}
    slots = _read(leaf, entry, features, selectors, buckets, extra, policy.shares_reads, inputs.query.dtype)
    arrangement = CachedKeys(leaf, slots, positions, num_heads, policy.is_exact)
    query = slice_axis(inputs.query, -2, 0, visible)
    output, _, log_sum_exp = attend(arrangement, query, slots.key, slots.value, slots.features)
    if visible != length:
        missing = length - visible
        output = pad_axis(output, -2, 0, missing)
        log_sum_exp = ops.pad(log_sum_exp, ((0, 0), (0, 0), (0, missing)), constant_values=lowest(log_sum_exp.dtype))
    return [*parts, Attended(output, log_sum_exp=log_sum_exp)]


def _columns(leaf: Leaf, entry: Entry, selectors: Selectors) -> list[str]:
    """Return the names of what an entry holds per slot."""
    names = *ROWS, *(f"{name}_scale" for name in ROWS), "position", *feature_names(leaf, selectors)
    return [name for name in names if name in entry]


def _with_extra(slots: Tensor, extra: Tensor) -> Tensor:
    """Append the content of the `extra` slots (B, n, L) to slots (B, 1 or n, S) or (B, n, S, H)."""
    if len(slots.shape) == 4:
        return ops.concatenate([slots, take_rows(slots, extra)], axis=2)
    slots = ops.broadcast_to(slots, (*shape(extra)[:2], shape(slots)[2]))
    return ops.concatenate([slots, take_numbers(slots, extra)], axis=2)


def _query_features(leaf: Leaf, selections: Selections) -> dict[int, Mapping[str, Tensor]]:
    """Return the features of new queries, (B, n, q) by name, for a leaf and its excluded leaves, by leaf index."""
    found = {each.index: selections[each.index] for each in (leaf, *leaf.excluded)}
    return {index: {} if selection is None else selection.features().query for index, selection in found.items()}


def _slot_features(
    leaf: Leaf, features: Mapping[int, Mapping[str, Tensor]], selectors: Selectors, take: Callable[[str], Tensor]
) -> dict[int, TokenFeatures]:
    """Return the `TokenFeatures` of a leaf and its excluded leaves. `take` reads key features from the entry."""
    known = {}
    for each in (leaf, *leaf.excluded):
        selector = selectors[each.index]
        names = () if selector is None else selector.key_features
        known[each.index] = TokenFeatures(features[each.index], {name: take(f"{name}_{each.index}") for name in names})
    return known


def _read(
    leaf: Leaf,
    entry: Entry,
    features: Mapping[int, Mapping[str, Tensor]],
    selectors: Selectors,
    buckets: Buckets | None,
    extra: Tensor | None,
    is_shared: bool,
    dtype: DType,
) -> ReadSlots:
    """Return the `ReadSlots` of new queries: all slots, or gathered buckets."""
    if buckets is None:

        def take(name):
            return entry[name][:, :, None]

        positions = take("position") + EMPTY
        exists = positions > EMPTY
    else:
        number = buckets.indices[..., None]  # (B, 1 or n, q, R, 1)
        if is_shared:
            number = take_key_heads(number, entry["key"].shape[1])
        at = number * buckets.size + ops.arange(buckets.size, dtype="int32")
        merged = (*shape(at)[:3], number.shape[3] * buckets.size)
        at = found = ops.reshape(at, merged)
        if extra is not None:
            num_slots = shape(entry["key"])[2]
            found = ops.where(at < num_slots, at, take_slots(extra, at - num_slots))

        def take(name):
            return take_slots(entry[name], found)

        positions = take("position") + EMPTY
        exists = merge(positions > EMPTY, at >= 0)
    known = _slot_features(leaf, features, selectors, take)
    scales = [take(f"{name}_scale") if f"{name}_scale" in entry else None for name in ROWS]
    key, value = (dequantize_rows(take(name), scale, dtype) for name, scale in zip(ROWS, scales, strict=True))
    return ReadSlots(key, value, positions, exists, known)


def _attend_new(leaf: Leaf, inputs: Inputs, tokens: NewTokens) -> Attended:
    """Compute attention of new tokens to each other, in an arrangement of the pattern."""
    (batch, heads, length, _), period = shape(inputs.query), leaf.pattern.period
    if leaf.reads_successors:
        inputs = inputs.shift_to_successors()
    selection: Any = inputs.selections[leaf.index]
    call = Call(batch, length, length, causal=True, group_size=heads // inputs.key.shape[1])
    if tokens.length is not None and (period is None or tokens.length < MANY_TOKENS):
        features = TokenFeatures({}, {}) if selection is None else leaf.features(selection)
        known = cast(Mapping, inputs.selections)
        inputs = inputs._replace(selections={**known, leaf.index: features})
        return _attend_from(leaf, NewGroup(leaf, features, tokens.positions), inputs, call)
    if period is None:
        name = type(leaf.pattern).__name__
        raise ValueError(f"`x` must have a known length with {name}. Received: x of unknown length.")
    if period == 1:
        return _attend_from(leaf, leaf.arrange(call, selection), inputs, call, Offset(tokens.start, 1))
    # The arrangement begins at a multiple of the period.
    shift = tokens.start % period
    at = ops.arange(length + period - 1, dtype="int32") - shift[:, None]  # (B, T')
    query, key, value = (take_positions(x, at[:, None]) for x in (inputs.query, inputs.key, inputs.value))
    masks = TokenMasks(key_mask=ops.logical_and(at >= 0, at < length))
    inputs = inputs._replace(query=query, key=key, value=value, masks=masks)
    call = call._replace(query_length=length + period - 1, key_length=length + period - 1)
    arrangement, offset = leaf.arrange(call, selection), Offset(tokens.start - shift, period)
    attended = _attend_from(leaf, arrangement, inputs, call, offset)
    back = (ops.arange(length, dtype="int32") + shift[:, None])[:, None]
    log_sum_exp = take_positions(cast(Tensor, attended.log_sum_exp)[..., None], back)[..., 0]
    return Attended(take_positions(attended.output, back), log_sum_exp=log_sum_exp)


def _attend_from(
    leaf: Leaf, arrangement: Arrangement, inputs: Inputs, call: Call, offset: Offset | None = None
) -> Attended:
    """Compute attention of new tokens. `offset`: where the arrangement begins, None for `NewGroup`."""
    if offset is not None and any(offset.changes(each.pattern) for each in (leaf, *leaf.excluded)):
        call = call._replace(offset=offset)
    return attend_arranged(arrangement, leaf, inputs, call, None, return_weights=False, return_log_sum_exp=True)


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
    positions: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """Compute attention of queries to the source sequence, (B, N, q, Hv).

    Args:
        plans: of `plan_heads`.
        cache: of `cross_cache`.
        query: scaled queries (B, N, q, H), not rotated.
        selectors: for each leaf its `Selector`, or None.
        heads: (B, N, q, H), queries as selectors compare them, see `SelectionInputs`.
        positions: int32 (B, q), the positions of the queries in their sequence.
        options: an `AttentionOptions`.
    """
    groups = _assign(plans, selectors, heads, positions)
    rotated = options.position.rotate(query, positions[:, None])
    results = []
    for plan in plans:
        own, queries, parts = options.slice_heads(plan.heads), take_heads(rotated, plan.heads), []
        batch, num_heads, length, _ = shape(queries)
        for leaf in plan.leaves:
            slots = _read_cross(leaf, cache, groups, positions)
            arrangement = CachedKeys(leaf, slots, positions, num_heads)
            inputs = Inputs(queries, slots.key, slots.value, slots.features, TokenMasks(), own)
            call = Call(batch, length, arrangement.key_length)
            parts.append(attend_plain(arrangement, leaf, inputs, call, return_weights=False, return_log_sum_exp=True))
        results.append(combine_attended(parts))
    return join_results(results, plans, query, options).output


def _assign(
    plans: Sequence[HeadPlan], selectors: Selectors, heads: Tensor, positions: Tensor
) -> Mapping[int, Tensor | None]:
    """Return the groups of the queries, int32 (B, n, q), for each leaf by index, None for leaves without a selector."""
    groups: dict[int, Tensor | None] = {}
    for plan in plans:
        own = take_heads(heads, plan.heads)
        for leaf in plan.leaves:
            selector = selectors[leaf.index]
            groups[leaf.index] = None if selector is None else selector.assign(own, positions)
    return groups


def _read_cross(leaf: Leaf, cache: Cache, groups: Mapping[int, Tensor | None], positions: Tensor) -> ReadSlots:
    """Return the `ReadSlots` of queries at `positions` (B, q)."""
    queries = {
        each.index: each.pattern.cross_cache().query(cache[entry_name(each)], groups[each.index], positions)
        for each in (leaf, *leaf.excluded)
    }
    policy, entry = leaf.pattern.cross_cache(), cache[entry_name(leaf)]
    found = policy.read(entry, TokenInfo(positions[:, None], queries[leaf.index]))
    features = {}
    for each in (leaf, *leaf.excluded):
        own, names = cache[entry_name(each)], each.pattern.cross_cache().names
        known = {name: take_slots(own[name], found.positions) for name in names}
        known |= found.features if each is leaf else {}
        features[each.index] = TokenFeatures(queries[each.index], known)
    return ReadSlots(found.key, found.value, found.positions, found.exists, features)
