"""The one function that computes attention under a pattern, whatever the pattern is."""

from collections.abc import Callable, Mapping, Sequence

from keras import ops

from tf_sparse_attention.ops.attend import (
    Attended,
    Dropout,
    apply_sinks,
    attend_shared_keys,
    combine_attended,
    scatter_weights,
    score_dtype,
)
from tf_sparse_attention.ops.grouped_heads import attend_heads
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import NoPosition, rotate_key, rotate_query_and_key
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.ops.token_groups import with_self_bias
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.fused_attention import attend_fused, attend_shared_fused, attend_union_fused
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, join_heads, plan_heads, select_tokens
from tf_sparse_attention.patterns.engine.inputs import AttentionOptions, Inputs, Selections
from tf_sparse_attention.patterns.engine.pair_masks import visible_pairs
from tf_sparse_attention.patterns.pattern import Call, Pattern, primitives
from tf_sparse_attention.patterns.selection import NoWeights, SelectionInputs
from tf_sparse_attention.types import Tensor


def attend_pattern(
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    causal: bool = False,
    masks: TokenMasks = TokenMasks(),
    select: Callable[[Tensor, Tensor], Selections] | None = None,
    position: NoPosition = NoPosition(),
    span: Span | None = None,
    hide_self: str | None = None,
    dropout: Dropout | None = None,
    persistent: tuple[Tensor, Tensor] | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    return_weights: bool = False,
    return_log_sum_exp: bool = False,
) -> Attended:
    """Computes attention of heads in which a pattern says what each query sees; no (T, S) array is formed.

    Args:
        pattern: a `Pattern`.
        query: scaled queries (B, N, T, H).
        key: keys (B, M, S, H), of which the first `masks.num_memory` come before the first query; M is N, or divides it
            where N / M heads beside each other share keys and values. None: the queries are used as keys.
        value: values (B, M, S, Hv).
        causal: whether keys at later positions are hidden.
        masks: a `TokenMasks`; its `query_mask` is not used here.
        select: function of the rotated queries and keys to the `Selection` of each of `primitives(pattern)`, or None of
            a leaf without one. None: leaves that are content-based have selectors without weights.
        position: of `AttentionOptions`; so are `span`, `hide_self`, `persistent`, `soft_cap` and `sinks`.
        dropout: an `attend.Dropout`, or None.
        return_weights: whether to return dense weights as well.
        return_log_sum_exp: whether to return the log-sum-exp as well.

    Returns:
        An `Attended`: the output (B, N, T, Hv), zeros where a query has nothing to attend to, and, if asked for, the
        dense weights (B, N, T, S), without the persistent ones, and the log-sum-exp (B, N, T).
    """
    key = query if key is None else key
    if key is query and not masks.num_memory:
        turned = keys = rotate_key(position, query)  # the same rows on both sides: turned once, and arranged once
    else:
        turned, keys = rotate_query_and_key(position, query, key, masks.num_memory)
    call = Call.of(pattern, query, keys, causal, masks)
    selections = _select(pattern, query, key, turned, keys, masks) if select is None else select(turned, keys)
    options = AttentionOptions(position, span, hide_self, soft_cap=soft_cap)
    inputs = Inputs(turned, keys, value, selections, masks, options)
    parts_follow = persistent is not None or sinks is not None
    returns = {"return_weights": return_weights, "return_log_sum_exp": return_log_sum_exp or parts_follow}
    plans = plan_heads(pattern, query.shape[1], value.shape[1])
    results = [
        _attend_heads(plan.leaves, own, call, dropout, returns)
        for plan, own in zip(plans, inputs.of_plans(plans), strict=True)
    ]
    options = options._replace(persistent=persistent, sinks=sinks)
    attended = join_results(results, plans, query, options, dropout)
    return attended if return_log_sum_exp else attended._replace(log_sum_exp=None)


def _select(pattern, query, key, rotated_query, rotated_key, masks):
    """Run selectors without weights."""
    plans = plan_heads(pattern, query.shape[1], key.shape[1])
    selectors = [leaf.make_selector(NoWeights()) if leaf.content_based else None for leaf in primitives(pattern)]
    return select_tokens(plans, selectors, SelectionInputs(query, key, rotated_query, rotated_key, masks))


def join_results(
    results: Sequence[Attended],
    plans: Sequence[HeadPlan],
    query: Tensor,
    options: AttentionOptions,
    dropout: Dropout | None = None,
) -> Attended:
    """Join the results of all plans, and add persistent vectors and sinks.

    Args:
        results: the `Attended` of each plan; with persistent vectors or sinks it has the log-sum-exp.
        plans: of `plan_heads`.
        query: scaled queries (B, N, T, H), not rotated.
        options: an `AttentionOptions`.
        dropout: an `attend.Dropout`, or None.
    """
    attended = Attended(*(join_heads(list(parts), plans) for parts in zip(*results, strict=True)))
    if options.persistent is not None:
        attended = _with_persistent(attended, query, options.persistent, dropout, options.soft_cap)
    return attended if options.sinks is None else apply_sinks(attended, options.sinks)


def _attend_heads(
    leaves: Sequence[Leaf], inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping[str, bool]
) -> Attended:
    """Returns the `Attended` of heads: that of their leaves, merged by their log-sum-exp."""
    if len(leaves) > 1:
        fused = attend_union_fused(leaves, inputs, call, dropout, returns)
        if fused is not None:
            return fused
        returns = {**returns, "return_log_sum_exp": True}
    return combine_attended([_attend_leaf(leaf, inputs, call, dropout, returns) for leaf in leaves])


def _attend_leaf(
    leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping[str, bool]
) -> Attended:
    call = call._replace(group_size=inputs.query.shape[1] // inputs.key.shape[1])
    arrangement = leaf.arrange(call, inputs.selections[leaf.index])  # type: ignore[arg-type]  # that of a call
    inputs = inputs.of_next() if leaf.reads_successors else inputs
    return attend_arranged(arrangement, leaf, inputs, call, dropout, **returns)


def attend_arranged(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None = None, **returns: bool
) -> Attended:
    """Computes attention inside the groups of one arrangement: arrange, attend, restore.

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
    fused = attend_fused(arrangement, leaf, inputs, call, dropout, returns)
    if fused is not None:
        return fused
    distances = arrangement.distances()
    if leaf.reads_successors:
        distances = distances.shifted(arrangement.lead)
    query = arrangement.queries(inputs.query)  # (B, N, G, t, H)
    masks, (position, span, hide_self, *_) = inputs.masks, inputs.options
    bias = position.score_bias(query, distances)
    if hide_self == "unless_alone":
        bias = with_self_bias(bias, arrangement.own_key())
    counts, span = arrangement.counts(), span if leaf.pattern.reach is not None else None
    if counts is not None:
        often = ops.log(ops.cast(ops.maximum(counts, 1), score_dtype(query.dtype)))
        bias = often if bias is None else ops.cast(bias, often.dtype) + often  # slopes are float32 in any case
    if dropout is not None and arrangement.sorts_tokens:
        dropout = dropout.with_positions(arrangement.query_positions(), arrangement.key_positions())
    row_has_key = None
    if masks.attention_mask is None and not leaf.excluded and hide_self != "always":
        row_has_key = arrangement.row_has_key()
    attended = attend_heads(
        query,
        arrangement.keys(inputs.key),
        arrangement.keys(inputs.value),
        mask=visible_pairs(arrangement, leaf, inputs, call),
        bias=bias,
        value_bias=position.value_bias(distances),
        span=None if span is None else span.factor(distances),
        row_has_key=row_has_key,
        soft_cap=inputs.options.soft_cap,
        dropout=dropout,
        **returns,
    )
    return attended.restored(
        rows=arrangement.restore,
        dense=lambda weights: scatter_weights(
            weights, arrangement.key_positions()[..., None, :], arrangement.key_length
        ),
    )


def _with_persistent(
    attended: Attended,
    query: Tensor,
    persistent: tuple[Tensor, Tensor],
    dropout: Dropout | None,
    soft_cap: float | None,
) -> Attended:
    """Returns attention to keys and persistent vectors together, merged by their log-sum-exp.

    Half the time of one softmax over both, whose joined scores are copied repeatedly in the backward pass.
    """
    dropout = None if dropout is None else dropout.without_positions()
    others = attend_shared_fused(query, *persistent, dropout, soft_cap)
    if others is None:
        others = attend_shared_keys(query, *persistent, dropout=dropout, soft_cap=soft_cap, return_log_sum_exp=True)
    weights = None if attended.weights is None else ops.zeros_like(attended.weights)  # theirs are not returned
    return combine_attended([attended, others._replace(weights=weights)])
