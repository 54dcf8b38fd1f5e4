"""Head plans: which heads compute which primitive patterns of a composition, and their inputs and options."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias, cast

from keras import ops

from tf_sparse_attention.ops.masks import TokenMasks, has_successor
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.ops.shapes import shape, shift_left, slice_axis
from tf_sparse_attention.ops.span import Span
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.group_band import GroupSelection
from tf_sparse_attention.patterns.pattern import Call, HeadComposition, Pattern, Union, dense_rule, primitives
from tf_sparse_attention.patterns.selection import Selection, SelectionInputs, Selector, TokenFeatures
from tf_sparse_attention.patterns.successors import Successors
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A primitive pattern as part of a composition.

    Attributes:
        pattern: the `Pattern`, neither a composition nor `Successors`.
        index: its number among all leaves of the composition.
        excluded: leaves of the same heads. Pairs that their patterns allow are left out of this one.
        reads_successors: whether key j contributes the value of token j + 1, see `Successors`. Then the pattern
            applies to keys at position j + 1.
    """

    pattern: Pattern
    index: int
    excluded: "tuple[Leaf, ...]" = ()
    reads_successors: bool = False

    def arrange(self, call: Call, selection: Selection | None) -> Arrangement:
        """Return the arrangement of a call, see `Pattern.arrange`."""
        return self.pattern.arrange(call._replace(lead=-1) if self.reads_successors else call, selection)

    def features(self, selection: Selection | TokenFeatures) -> TokenFeatures:
        """Return the features of tokens in the order of the sequence."""
        if self.reads_successors and isinstance(selection, GroupSelection):
            selection = dataclasses.replace(selection, lead=-1)
        return selection.features()

    def token_masks(self, arrangement: Arrangement, masks: TokenMasks) -> TokenMasks:
        """Return the masks of a call without those that an arrangement already applies."""
        if not arrangement.keeps_token_masks:
            return masks
        # Keys without a successor are still masked.
        return masks._replace(key_mask=masks.key_mask if self.reads_successors else None, query_segments=None)

    def dense(self, call: Call, selection: Selection | TokenFeatures | None) -> Tensor:
        """Return the dense reference mask, bool broadcastable to (B, n, T, S); of several softmaxes (B, n, K, T, S)."""
        if isinstance(self.pattern, BestOfCluster):  # a mask for each softmax
            return self.pattern.dense(call, cast(MemberSelection, selection))
        if selection is None:
            self.arrange(call, None)  # raises the errors of a call
        features = TokenFeatures({}, {}) if selection is None else self.features(selection)
        return dense_rule(self.pattern, call._replace(lead=-1) if self.reads_successors else call, features)


class HeadPlan(NamedTuple):
    """Heads with one softmax over the keys of the same leaves.

    Attributes:
        heads: range of head numbers.
        leaves: tuple of `Leaf`.
        key_heads: range of the numbers of their key heads, which equally many of the heads share.
    """

    heads: range
    leaves: tuple[Leaf, ...]
    key_heads: range


def plan_heads(pattern: Pattern, num_heads: int, num_key_heads: int | None = None) -> list[HeadPlan]:
    """Return the `HeadPlan` of each set of heads, in the order of the leaves.

    Args:
        pattern: a `Pattern`.
        num_heads: N, heads of queries.
        num_key_heads: M, heads of keys and values, each shared by N / M consecutive heads. None: N.

    Raises:
        ValueError: if the pattern has another number of heads, or if its parts split the heads that share keys
            unevenly.
    """
    size = num_heads // (num_heads if num_key_heads is None else num_key_heads)
    plans = _plan(pattern, range(num_heads), first_leaf=0)
    return [plan._replace(key_heads=_key_heads(plan.heads, size)) for plan in plans]


def _key_heads(heads, size):
    """Return the range of the key heads of a range of heads, in groups of `size`."""
    if size == 1:
        return heads
    read = [head // size for head in heads]
    found = sorted(set(read))
    step = found[1] - found[0] if len(found) > 1 else 1
    every = range(found[0], found[-1] + 1, step)
    if sorted([*every] * (len(read) // len(found))) != read:
        raise ValueError(
            "`num_key_value_heads` must divide the heads of each part of the pattern evenly. "
            f"Received: heads {list(heads)} of one part with the key heads {read}."
        )
    return every


def _plan(pattern: Pattern, heads: range, first_leaf: int) -> list[HeadPlan]:
    if not isinstance(pattern, HeadComposition):
        return [HeadPlan(heads, _leaves(pattern, first_leaf, ()), heads)]
    plans = []
    for part, own in zip(pattern.parts, pattern.slices(len(heads)), strict=True):
        plans += _plan(part, heads[own], first_leaf)
        first_leaf += len(primitives(part))
    return plans


def _leaves(pattern: Pattern, first_leaf: int, excluded: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """Return the `Leaf` of each part, in the order of computation."""
    if not isinstance(pattern, Union):
        shifts = isinstance(pattern, Successors)
        # The pair of a query and a key differs from the pair of the query and the key's successor.
        others = tuple(leaf for leaf in excluded if leaf.reads_successors == shifts)
        return (Leaf(pattern.pattern if isinstance(pattern, Successors) else pattern, first_leaf, others, shifts),)
    numbered = []
    for part in pattern.parts:
        numbered.append((part, first_leaf))
        first_leaf += len(primitives(part))
    leaves: tuple[Leaf, ...] = ()
    # Rules of positions come first, because they are cheap to evaluate where other leaves exclude their pairs.
    for part, first in sorted(numbered, key=lambda pair: pair[0].content_based):
        own = _leaves(part, first, excluded)
        leaves += own
        if not pattern.count_each:
            excluded += own
    return leaves


def as_slice(heads: range) -> slice:
    """Return a range of heads as a slice."""
    return slice(heads.start, heads.stop, heads.step)


def take_heads(x: Tensor, heads: range) -> Tensor:
    """Take a range of the heads of a tensor (B, N, ...). A tensor with one head (N = 1) is shared by all heads.

    It slices and reshapes, because the gradient of a gather is a scatter.
    """
    batch, num_heads, *rest = shape(x)
    if isinstance(num_heads, int) and (num_heads == 1 or heads == range(num_heads)):
        return x
    axis = 1 - len(x.shape)
    if heads.step == 1:
        return slice_axis(x, axis, heads.start, heads.stop)
    count, step = len(heads), heads.step
    first = max(0, min(heads.start, num_heads - count * step))
    strided = ops.reshape(slice_axis(x, axis, first, first + count * step), (batch, count, step, *rest))
    at = heads.start - first
    return ops.squeeze(slice_axis(strided, axis, at, at + 1), 2)


def split_heads(x: Tensor, heads: Sequence[range]) -> list[Tensor]:
    """Take several ranges of the heads of a tensor (B, N, ...), see `take_heads`."""
    counts = [len(own) for own in heads]
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    in_order = list(heads) == [range(end - n, end) for end, n in zip(ends, counts, strict=True)]
    if len(heads) > 1 and in_order and x.shape[1] == ends[-1]:
        return ops.split(x, ends[:-1], axis=1)  # the gradient of slices would pad and add
    return [take_heads(x, own) for own in heads]


def join_heads(parts: Sequence[Tensor | None], plans: Sequence[HeadPlan]) -> Tensor | None:
    """Concatenate the heads (B, n, ...) of all plans in order, (B, N, ...). None if a part is None."""
    given = [part for part in parts if part is not None]
    if len(given) < len(parts):  # unions have a log-sum-exp even if it is not requested
        return None
    if len(given) == 1:
        return given[0]
    order = [head for plan in plans for head in plan.heads]
    if order == sorted(order):
        return ops.concatenate(given, axis=1)
    axis = 1 - len(given[0].shape)
    single = [slice_axis(x, axis, i, i + 1) for x in given for i in range(x.shape[1])]
    return ops.concatenate([single[order.index(head)] for head in range(len(order))], axis=1)


def select_tokens(
    plans: Sequence[HeadPlan], selectors: Sequence[Selector | None], inputs: SelectionInputs
) -> list[Selection | None]:
    """Select for the tokens of a call, by the selector of each leaf.

    Args:
        plans: of `plan_heads`.
        selectors: for each leaf by its index its selector, or None.
        inputs: a `SelectionInputs` of all heads.
    """
    selections: list[Selection | None] = [None] * len(selectors)
    for plan in plans:
        if any(selectors[leaf.index] for leaf in plan.leaves):
            own = slice_inputs(plan, inputs)
            for leaf in plan.leaves:
                selector = selectors[leaf.index]
                selections[leaf.index] = None if selector is None else selector.select(own)
    return selections


def slice_inputs(plan: HeadPlan, inputs: SelectionInputs) -> SelectionInputs:
    """Return the `SelectionInputs` of the heads of a plan."""
    query, rotated_query = (take_heads(x, plan.heads) for x in (inputs.query, inputs.rotated_query))
    key = query if inputs.key is inputs.query else take_heads(inputs.key, plan.key_heads)
    return inputs._replace(
        query=query, key=key, rotated_query=rotated_query, rotated_key=take_heads(inputs.rotated_key, plan.key_heads)
    )


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

    def split(self, plans: Sequence[HeadPlan]) -> "list[Inputs]":
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

    def shift_to_successors(self) -> "Inputs":
        """Return the inputs with the value of token j + 1 for key j. Keys without a successor are masked."""
        options = self.options._replace(hide_self=None)  # no query attends to its own position
        masks = self.masks._replace(key_mask=has_successor(self.masks))
        return self._replace(value=shift_left(self.value, -2), masks=masks, options=options)
