"""Inputs of attention under a pattern: rotated heads, selections, masks, options, and the mask of all pairs."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

from tf_sparse_attention.ops.masks import TokenMasks, has_successor, merge, negate, take_mask_pairs
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.ops.shapes import shift_left
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, Leaf, as_slice, split_heads
from tf_sparse_attention.patterns.pattern import Call, Pattern, rule_conditions
from tf_sparse_attention.patterns.selection import Selection
from tf_sparse_attention.patterns.token_info import TokenFeatures, TokenInfo
from tf_sparse_attention.types import Tensor

# By the index of a leaf.
Selections: TypeAlias = Sequence[Selection | None] | Mapping[int, Selection | TokenFeatures | None]


class AttentionOptions(NamedTuple):
    """Options of a layer that apply to any pattern.

    Attributes:
        position: a position object of `ops.positions`. Default: no positions.
        span: an `ops.span.Span`, or None.
        hide_self: "always": a query never attends to the key at its position; "unless_alone": only if it has no other
            key in any part of the pattern; None: as to other keys.
        persistent: pair of keys (N, M, H) and values (N, M, Hv) without positions for all queries, or None.
        soft_cap: c of c tanh(q . k / c), which replaces q . k; or None.
        sinks: float (N,), a logit without a value for each head; or None.
    """

    position: NoPosition = NoPosition()
    span: Span | None = None
    hide_self: str | None = None
    persistent: tuple[Tensor, Tensor] | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None

    def slice_heads(self, heads: range) -> Self:
        """Return the options of a range of heads. Persistent vectors and sinks stay those of all heads."""
        own = as_slice(heads)
        span = None if self.span is None else self.span.slice_heads(own)
        return self._replace(position=self.position.slice_heads(own), span=span)


class Inputs(NamedTuple):
    """Inputs of attention under a pattern, for n of the heads.

    Attributes:
        query: (B, n, T, H), rotated by positions.
        key: (B, m, S, H), rotated by positions, m a divisor of n; the query itself where queries are used as keys.
        value: (B, m, S, Hv).
        selections: the `Selection` of each leaf by its index, None for leaves without one.
        masks: a `TokenMasks`.
        options: an `AttentionOptions`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    selections: Selections
    masks: TokenMasks
    options: AttentionOptions

    def of_plans(self, plans: Sequence[HeadPlan]) -> "list[Inputs]":
        """Return the inputs of each plan."""
        if len(plans) == 1:
            return [self]
        heads, key_heads = [plan.heads for plan in plans], [plan.key_heads for plan in plans]
        queries = split_heads(self.query, heads)
        keys = queries if self.key is self.query else split_heads(self.key, key_heads)
        parts = []
        for plan, query, key, value in zip(plans, queries, keys, split_heads(self.value, key_heads), strict=True):
            masks = self.masks.slice_heads(as_slice(plan.heads))
            parts.append(Inputs(query, key, value, self.selections, masks, self.options.slice_heads(plan.heads)))
        return parts

    def of_successors(self) -> "Inputs":
        """Return the inputs with the value of token j + 1 for key j. Keys without a successor are masked."""
        options = self.options._replace(hide_self=None)  # no query attends to its own position
        masks = self.masks._replace(key_mask=has_successor(self.masks))
        return self._replace(value=shift_left(self.value, -2), masks=masks, options=options)


def visible_pairs(arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call) -> Tensor | None:
    """Return the mask of all pairs of slots, bool broadcastable to (B, N, G, t, s). None: all pairs attend."""
    masks = token_masks(arrangement, leaf, inputs.masks)
    conditions: list[Tensor | None] = []
    if not arrangement.is_exact:
        conditions += arranged_conditions(arrangement, leaf.pattern, inputs.selections[leaf.index], call)
    for other in leaf.excluded:
        selection = inputs.selections[other.index]
        features = None if selection is None else other.features(selection)
        conditions.append(negate(merge(*arranged_conditions(arrangement, other.pattern, features, call))))
    if call.causal:
        conditions.append(arrangement.causal_mask())
    if inputs.options.hide_self == "always":
        conditions.append(negate(arrangement.self_mask()))
    conditions.append(arrangement.key_exists())
    conditions += _token_masks(arrangement, masks)
    if masks.attention_mask is not None:
        positions = arrangement.query_positions(), arrangement.key_positions()
        conditions.append(take_mask_pairs(masks.attention_mask, *positions))
    return merge(*conditions)


def token_masks(arrangement: Arrangement, leaf: Leaf, masks: TokenMasks) -> TokenMasks:
    """Return the masks of a call without those that an arrangement already applies."""
    if not arrangement.keeps_token_masks:
        return masks
    # Keys without a successor are still masked.
    return masks._replace(key_mask=masks.key_mask if leaf.reads_successors else None, query_segments=None)


def arranged_conditions(
    arrangement: Arrangement, pattern: Pattern, selection: Selection | TokenFeatures | None, call: Call
) -> tuple[Tensor, ...]:
    """Evaluate the mask rule of a pattern for the pairs of an arrangement, see `rule_conditions`."""
    positions = arrangement.rule_positions(pattern.period)
    features = TokenFeatures({}, {}) if selection is None else arrangement.features(selection)
    starts: list[Callable[[], Tensor] | None] = [None, None]
    if call.starts is not None:
        begins = call.starts
        starts = [
            lambda: arrangement.queries(begins()[0], -1)[..., :, None],
            lambda: arrangement.keys(begins()[1], -1)[..., None, :],
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
