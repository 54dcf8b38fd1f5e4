"""Inputs of attention under a pattern: rotated heads, selections, masks and options."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

from tf_sparse_attention.ops.masks import TokenMasks, has_successor
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.ops.shapes import shift_left
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan, as_slice, split_heads
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
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
        persistent: pair of keys (N, M, H) and values (N, M, Hv) without positions, to which every query attends; or
            None.
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
