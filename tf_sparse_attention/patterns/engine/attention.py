"""Attention of heads under any pattern: arrange, one masked softmax per group, restore; dense reference masks."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from keras import ops

from tf_sparse_attention.ops.attend import (
    Attended,
    Dropout,
    apply_sinks,
    attend_heads,
    attend_shared_keys,
    combine_attended,
    scatter_weights,
    score_dtype,
    with_self_bias,
)
from tf_sparse_attention.ops.masks import (
    TokenMasks,
    dense_mask,
    has_successor,
    hide_self_unless_alone,
    merge,
    negate,
    take_mask_pairs,
)
from tf_sparse_attention.ops.positions import rotate_key, rotate_query_and_key
from tf_sparse_attention.ops.shapes import repeat_key_heads, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.fused_attention import attend_fused, attend_shared_fused, attend_union_fused
from tf_sparse_attention.patterns.engine.head_plans import (
    AttentionOptions,
    HeadPlan,
    Inputs,
    Leaf,
    Selections,
    as_slice,
    join_heads,
    plan_heads,
    select_tokens,
)
from tf_sparse_attention.patterns.pattern import Call, Pattern, primitives, rule_conditions
from tf_sparse_attention.patterns.selection import NoWeights, Selection, SelectionInputs, TokenFeatures, TokenInfo
from tf_sparse_attention.types import Size, Tensor


def attend_pattern(
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    causal: bool = False,
    masks: TokenMasks = TokenMasks(),
    select: Callable[[Tensor, Tensor, Sequence[HeadPlan]], Selections] | None = None,
    dropout: Dropout | None = None,
    return_weights: bool = False,
    return_log_sum_exp: bool = False,
    options: AttentionOptions = AttentionOptions(),
) -> Attended:
    """Compute attention of heads under a pattern, without an array (T, S).

    Args:
        pattern: a `Pattern`.
        query: scaled queries (B, N, T, H).
        key: keys (B, M, S, H), M a divisor of N. The first `masks.num_memory` of them precede the first query. None:
            the queries are used as keys.
        value: values (B, M, S, Hv).
        causal: whether later keys are masked. Default False.
        masks: a `TokenMasks`. `query_mask` applies only to the selection of tokens.
        select: function of the rotated queries and keys and the head plans to the `Selection` of each primitive
            pattern, None for those that are not content-based. None: the selectors have no weights.
        dropout: an `attend.Dropout`, or None.
        return_weights: whether to return dense weights. Default False.
        return_log_sum_exp: whether to return the log-sum-exp. Default False.
        options: an `AttentionOptions`.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros for a query with no key to attend to, and optionally the weights
        (B, N, T, S), without those of persistent vectors, and the log-sum-exp (B, N, T).
    """
    key = query if key is None else key
    if key is query and not masks.num_memory:
        rotated = keys = rotate_key(options.position, query)  # one tensor, so that it is arranged once
    else:
        rotated, keys = rotate_query_and_key(options.position, query, key, masks.num_memory)
    plans = plan_heads(pattern, query.shape[1], value.shape[1])
    if select is not None:
        selections = select(rotated, keys, plans)
    else:
        selections = _select_without_weights(pattern, plans, SelectionInputs(query, key, rotated, keys, masks))
    call = Call.from_inputs(pattern, query, keys, causal, masks)
    inputs = Inputs(rotated, keys, value, selections, masks, options)
    needs_sum = return_log_sum_exp or options.persistent is not None or options.sinks is not None
    returns = {"return_weights": return_weights, "return_log_sum_exp": needs_sum}
    results = [
        _attend_heads(plan.leaves, own, call, dropout, returns)
        for plan, own in zip(plans, inputs.split(plans), strict=True)
    ]
    attended = join_results(results, plans, query, options, dropout)
    return attended if return_log_sum_exp else attended._replace(log_sum_exp=None)


def _select_without_weights(pattern, plans, inputs):
    """Run the selectors of a pattern, which must not have weights."""
    if not pattern.content_based:
        return [None] * len(primitives(pattern))
    selectors = [leaf.make_selector(NoWeights()) if leaf.content_based else None for leaf in primitives(pattern)]
    return select_tokens(plans, selectors, inputs)


def join_results(
    results: Sequence[Attended],
    plans: Sequence[HeadPlan],
    query: Tensor,
    options: AttentionOptions,
    dropout: Dropout | None = None,
) -> Attended:
    """Join the results of all plans, and add persistent vectors and sinks.

    Args:
        results: the `Attended` of each plan, with the log-sum-exp if there are persistent vectors or sinks.
        plans: of `plan_heads`.
        query: scaled queries (B, N, T, H), not rotated.
        options: an `AttentionOptions`.
        dropout: an `attend.Dropout`, or None.
    """
    attended = results[0]
    if len(results) > 1:
        attended = Attended(*(join_heads(list(parts), plans) for parts in zip(*results, strict=True)))
    if options.persistent is not None:
        attended = _with_persistent(attended, query, options.persistent, dropout, options.soft_cap)
    return attended if options.sinks is None else apply_sinks(attended, options.sinks)


def _attend_heads(
    leaves: Sequence[Leaf], inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping[str, bool]
) -> Attended:
    """Compute attention of heads with one softmax over the keys of several leaves."""
    if len(leaves) > 1:
        fused = attend_union_fused(leaves, inputs, call, dropout, returns)
        if fused is not None:
            return fused
        returns = {**returns, "return_log_sum_exp": True}
    call = call._replace(group_size=inputs.query.shape[1] // inputs.key.shape[1])
    results = []
    for leaf in leaves:
        arrangement = leaf.arrange(call, inputs.selections[leaf.index])  # type: ignore[arg-type]  # that of a call
        own = inputs.shift_to_successors() if leaf.reads_successors else inputs
        results.append(attend_arranged(arrangement, leaf, own, call, dropout, **returns))
    return combine_attended(results)


def attend_arranged(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None, **returns: bool
) -> Attended:
    """Compute attention within the groups of an arrangement, by a kernel or by plain operations.

    Args:
        arrangement: an `Arrangement`.
        leaf: the `Leaf` that it arranges.
        inputs: an `Inputs`.
        call: a `Call`.
        dropout: an `attend.Dropout`, or None.
        **returns: `return_weights` and `return_log_sum_exp` of `attend`.

    Returns:
        An `Attended`, in the order of the sequence.
    """
    if arrangement.parts:
        returns["return_log_sum_exp"] = returns["return_log_sum_exp"] or arrangement.shares_softmax
        return arrangement.combine(
            [attend_arranged(part, leaf, inputs, call, dropout, **returns) for part in arrangement.parts]
        )
    # Kernels do not support an offset.
    fused = attend_fused(arrangement, leaf, inputs, call, dropout, returns) if call.offset is None else None
    return attend_plain(arrangement, leaf, inputs, call, dropout, **returns) if fused is None else fused


def attend_plain(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None = None, **returns: bool
) -> Attended:
    """Compute attention within the groups of one arrangement by plain operations, see `attend_arranged`."""
    distances = arrangement.distances()
    if leaf.reads_successors:
        distances = distances.shifted(arrangement.lead)
    query = arrangement.queries(inputs.query)  # (B, N, G, t, H)
    masks, options = inputs.masks, inputs.options
    bias = options.position.score_bias(query, distances)
    if options.hide_self == "unless_alone":
        bias = with_self_bias(bias, arrangement.self_mask())
    counts, span = arrangement.key_counts(), options.span if leaf.pattern.reach is not None else None
    members = arrangement.members
    visible = visible_pairs(members or arrangement, leaf, inputs, call)
    if members is not None:
        counts = _count_members(visible, shape(arrangement.key_positions())[-1], query.shape[1])
        visible = merge(counts > 0, arrangement.pair_mask())
    if counts is not None:
        log_counts = ops.log(ops.cast(ops.maximum(counts, 1), score_dtype(query.dtype)))
        bias = log_counts if bias is None else ops.cast(bias, log_counts.dtype) + log_counts
    if dropout is not None and arrangement.sorts_tokens:
        dropout = dropout.with_positions(arrangement.query_positions(), arrangement.key_positions())
    row_has_key = None
    if masks.attention_mask is None and not leaf.excluded and options.hide_self != "always":
        row_has_key = arrangement.row_has_key()
    attended = attend_heads(
        query,
        arrangement.keys(inputs.key),
        arrangement.keys(inputs.value),
        mask=visible,
        bias=bias,
        value_bias=options.position.value_bias(distances),
        span=None if span is None else span.factor(distances),
        row_has_key=row_has_key,
        soft_cap=options.soft_cap,
        dropout=dropout,
        **returns,
    )

    def scatter(weights):
        return scatter_weights(weights, arrangement.key_positions()[..., None, :], arrangement.key_length)

    return attended.restored(rows=arrangement.restore, dense=scatter)


def _count_members(visible: Tensor | None, num_slots: Size, num_heads: int) -> Tensor:
    """Return the number of visible members of each key slot, int32 (B, N, G, t, s)."""
    members = ops.cast(cast(Tensor, visible), "int32")
    return repeat_key_heads(ops.sum(ops.reshape(members, (*shape(members)[:-1], num_slots, -1)), axis=-1), num_heads)


def _with_persistent(
    attended: Attended,
    query: Tensor,
    persistent: tuple[Tensor, Tensor],
    dropout: Dropout | None,
    soft_cap: float | None,
) -> Attended:
    """Add persistent vectors to the softmax, by the log-sum-exp.

    It takes half the time of one softmax over keys and vectors, whose scores the backward pass copies repeatedly.
    """
    dropout = None if dropout is None else dropout.without_positions()
    others = attend_shared_fused(query, *persistent, dropout, soft_cap)
    if others is None:
        others = attend_shared_keys(query, *persistent, dropout=dropout, soft_cap=soft_cap, return_log_sum_exp=True)
    weights = None if attended.weights is None else ops.zeros_like(attended.weights)
    return combine_attended([attended, others._replace(weights=weights)])


def visible_pairs(arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call) -> Tensor | None:
    """Return the mask of all pairs of slots, bool broadcastable to (B, N, G, t, s). None: all pairs attend."""
    masks = leaf.token_masks(arrangement, inputs.masks)
    conditions: list[Tensor | None] = []
    if not arrangement.is_exact:
        conditions += arranged_conditions(arrangement, leaf.pattern, inputs.selections[leaf.index], call)
    for other in leaf.excluded:
        selection = inputs.selections[other.index]
        features = None if selection is None else other.features(selection)
        conditions.append(negate(merge(*arranged_conditions(arrangement, other.pattern, features, call))))
    if call.causal:
        conditions.append(arrangement.causal_mask())
    conditions.append(arrangement.pair_mask())
    if inputs.options.hide_self == "always":
        conditions.append(negate(arrangement.self_mask()))
    conditions.append(arrangement.key_exists())
    conditions += _token_masks(arrangement, masks)
    if masks.attention_mask is not None:
        positions = arrangement.query_positions(), arrangement.key_positions()
        conditions.append(take_mask_pairs(masks.attention_mask, *positions))
    return merge(*conditions)


def arranged_conditions(
    arrangement: Arrangement, pattern: Pattern, selection: Selection | TokenFeatures | None, call: Call
) -> tuple[Tensor, ...]:
    """Evaluate the mask rule of a pattern for the pairs of an arrangement, see `rule_conditions`."""
    positions = arrangement.rule_positions(pattern.period)
    if call.offset is not None and call.offset.changes(pattern):
        first = call.offset.position[:, None, None, None, None]
        positions = tuple(first + ops.convert_to_tensor(x, "int32") for x in arrangement.rule_positions(None))
    features = TokenFeatures({}, {}) if selection is None else arrangement.features(selection)
    starts: list[Callable[[], Tensor] | None] = [None, None]
    if call.starts is not None:
        begins = call.starts
        starts = [
            lambda: arrangement.queries(begins(), -1)[..., :, None],
            lambda: arrangement.keys(begins(), -1)[..., None, :],
        ]
    return rule_conditions(pattern, *(TokenInfo(*token) for token in zip(positions, features, starts, strict=True)))


def _token_masks(arrangement, masks):
    """Return the masks of padding and documents."""
    conditions = []
    if masks.key_mask is not None:
        conditions.append(arrangement.keys(masks.key_mask[:, None], -1)[..., None, :])
    if masks.query_segments is not None:
        own = arrangement.queries(masks.query_segments[:, None], -1)[..., :, None]
        conditions.append(own == arrangement.keys(masks.key_segments[:, None], -1)[..., None, :])
    return conditions


def dense_pattern(
    pattern: Pattern,
    call: Call,
    num_heads: int,
    masks: TokenMasks = TokenMasks(),
    selections: Selections | None = None,
    options: AttentionOptions = AttentionOptions(),
) -> Tensor:
    """Compute the dense reference mask of a pattern, in O(T S) memory.

    Args:
        pattern: a `Pattern`.
        call: a `Call`.
        num_heads: N.
        masks: the `TokenMasks` of the call.
        selections: the `Selection` of each leaf; None: no leaf has one.
        options: an `AttentionOptions`.

    Returns:
        Bool (B, N, T, S), True where a query attends to a key.
    """
    selections = [None] * len(primitives(pattern)) if selections is None else selections
    plans = plan_heads(pattern, num_heads)
    parts = [
        _dense_heads(plan, call, selections, masks.slice_heads(as_slice(plan.heads)), options.slice_heads(plan.heads))
        for plan in plans
    ]
    return join_heads(parts, plans)


def _dense_heads(
    plan: HeadPlan, call: Call, selections: Selections, masks: TokenMasks, options: AttentionOptions
) -> Tensor:
    """Compute the dense mask of the heads of a plan, (B, n, T, S)."""
    sizes = call.batch, len(plan.heads), call.query_length, call.key_length
    leaves = [_dense_leaf(leaf, call, selections, masks) for leaf in plan.leaves]
    if len(leaves[0].shape) > 4:
        return ops.broadcast_to(_merge_softmaxes(leaves[0], masks, options.hide_self), sizes)
    if options.span is not None:
        in_span = options.span.dense_mask(call.query_length, call.key_length, call.lead)
        leaves = [
            ops.logical_and(seen, in_span) if leaf.pattern.reach is not None else seen
            for seen, leaf in zip(leaves, plan.leaves, strict=True)
        ]
    seen = ops.convert_to_tensor(functools.reduce(ops.logical_or, leaves))
    return _hide(ops.broadcast_to(dense_mask(seen, masks), sizes), options.hide_self, call.lead)


def _dense_leaf(leaf: Leaf, call: Call, selections: Selections, masks: TokenMasks) -> Tensor:
    """Compute the dense mask of a leaf, broadcastable to (B, n, T, S), before the masks of the call."""
    seen = leaf.dense(call, selections[leaf.index])
    if not leaf.reads_successors:
        return seen
    followed = has_successor(masks)
    return seen if followed is None else merge(seen, followed[:, None, None])


def _merge_softmaxes(seen: Tensor, masks: TokenMasks, hide_self: str | None) -> Tensor:
    """Return the union (B, N, T, S) of the masks of several softmaxes per query, (B, N, K, T, S)."""
    allowed = dense_mask(None, masks)
    seen = seen if allowed is None else ops.logical_and(seen, allowed[:, :, None])
    return ops.any(_hide(seen, hide_self, 0), axis=2)


def _hide(seen: Tensor, hide_self: str | None, num_memory: int) -> Tensor:
    """Apply `hide_self` of `AttentionOptions` to a dense mask."""
    if hide_self == "unless_alone":
        return hide_self_unless_alone(seen)
    if hide_self == "always":
        sizes = ops.shape(seen)[-2:]
        return ops.logical_and(seen, ops.logical_not(ops.eye(*sizes, k=num_memory, dtype="bool")))
    return seen
