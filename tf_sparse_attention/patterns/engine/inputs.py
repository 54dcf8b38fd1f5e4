"""What attention under a pattern is computed of."""

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
    """What a layer adds to its pattern.

    Attributes:
        position: a position object of `ops.positions`.
        span: an `ops.span.Span`, or None.
        hide_self: "unless_alone": a query sees the key of its own position only if it sees no other, in any part of the
            pattern; "always": never; None: as it sees others.
        persistent: pair of keys (N, M, H) and values (N, M, Hv) that every query sees, without positions; or None.
        soft_cap: c of c tanh(q . k / c) in place of the products q . k; or None.
        sinks: float (N,), a logit of each head without a value; or None.
    """

    position: NoPosition = NoPosition()
    span: Span | None = None
    hide_self: str | None = None
    persistent: tuple[Tensor, Tensor] | None = None
    soft_cap: float | None = None
    sinks: Tensor | None = None

    def slice_heads(self, heads: range) -> Self:
        """Returns the options of the heads that a range says.

        Persistent vectors and sinks stay those of all heads: they join what parts of the heads have given together.
        """
        own = as_slice(heads)
        span = None if self.span is None else self.span.slice_heads(own)
        return self._replace(position=self.position.slice_heads(own), span=span)


class Inputs(NamedTuple):
    """What attention under a pattern is computed of, for some of the heads.

    Attributes:
        query: (B, n, T, H), turned by positions.
        key: (B, m, S, H), likewise, of as many heads or fewer; the query itself where queries are used as keys.
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
        """Returns the inputs of each of the plans; `selections` are by leaf and stay."""
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

    def of_next(self) -> "Inputs":
        """Returns the inputs with each key's value that of the next token, where there is one of its document."""
        options = self.options._replace(hide_self=None)  # which is later than all that are seen
        masks = self.masks._replace(key_mask=has_successor(self.masks))
        return self._replace(value=shift_left(self.value, -2), masks=masks, options=options)
