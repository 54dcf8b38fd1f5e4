"""Dense reference masks of patterns, from the same mask rules, for tests and pictures."""

import functools

from keras import ops

from tf_sparse_attention.ops.masks import TokenMasks, dense_mask, has_successor, hide_self_unless_alone, merge
from tf_sparse_attention.patterns.engine.head_plans import (
    AttentionOptions,
    HeadPlan,
    Leaf,
    Selections,
    as_slice,
    join_heads,
    plan_heads,
)
from tf_sparse_attention.patterns.pattern import Call, Pattern, primitives
from tf_sparse_attention.types import Tensor


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
