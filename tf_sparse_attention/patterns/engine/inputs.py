"""What attention under a pattern is computed of."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from tf_sparse_attention.ops.blocks import shift_back
from tf_sparse_attention.ops.masks import TokenMasks, has_successor
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns.call import Known
from tf_sparse_attention.patterns.engine.plan import HeadPlan, as_slice, split_heads
from tf_sparse_attention.types import Tensor


class AttentionOptions(NamedTuple):
    """What a layer adds to its pattern, by the names of `attend_pattern`."""

    position: NoPosition = NoPosition()
    span: Span | None = None
    hide_self: str | None = None
    persistent: tuple[Tensor, Tensor] | None = None

    def of_heads(self, heads: range) -> Self:
        """Returns the options of the heads that a range says."""
        own = as_slice(heads)
        span = None if self.span is None else self.span.of_heads(own)
        return self._replace(position=self.position.of_heads(own), span=span)


class Inputs(NamedTuple):
    """What attention under a pattern is computed of, for some of the heads.

    Attributes:
        query: (B, n, T, H), turned by positions.
        key: (B, n, S, H), likewise; the query itself where queries serve as keys.
        value: (B, n, S, Hv).
        known: for each leaf of the pattern what is known beside positions, see `attend_pattern`.
        masks: a `TokenMasks`.
        options: an `AttentionOptions`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    known: Sequence[Known]
    masks: TokenMasks
    options: AttentionOptions

    def of_plans(self, plans: Sequence[HeadPlan]) -> "list[Inputs]":
        """Returns the inputs of each of the plans; `known` is by leaf and stays."""
        if len(plans) == 1:
            return [self]
        queries = split_heads(self.query, plans)
        keys = queries if self.key is self.query else split_heads(self.key, plans)
        parts = []
        for plan, query, key, value in zip(plans, queries, keys, split_heads(self.value, plans), strict=True):
            masks = self.masks.of_heads(as_slice(plan.heads))
            parts.append(Inputs(query, key, value, self.known, masks, self.options.of_heads(plan.heads)))
        return parts

    def of_next(self) -> "Inputs":
        """Returns the inputs with each key's value that of the next token, where there is one of its document."""
        options = self.options._replace(hide_self=None)  # which is later than all that are seen
        masks = self.masks._replace(key_mask=has_successor(self.masks))
        return self._replace(value=shift_back(self.value, -2), masks=masks, options=options)
