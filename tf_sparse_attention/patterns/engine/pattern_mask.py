"""The rules of patterns as kernels ask them: of slots in the order of an arrangement, and of what is known of them."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from keras import ops

from tf_sparse_attention.kernels.availability import SlotNumbers, SlotPairs, SpanRule
from tf_sparse_attention.kernels.kernel_mask import can_ask
from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.groups import groups_of_keys
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.patterns.call import Call
from tf_sparse_attention.patterns.conditions import rule_conditions
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.engine.visible import token_masks
from tf_sparse_attention.patterns.groups import GroupBand
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor

Pair: TypeAlias = tuple[Tensor, Tensor]  # of queries and of keys


@dataclasses.dataclass(frozen=True)
class SlotRule:
    """Whether a query slot sees a key slot of its group, in the order of an arrangement.

    Attributes:
        pattern: the `Pattern` whose rule it is.
        causal: whether later keys are hidden.
        lead: see `Arrangement`; so is `slot_positions`.
        hides_self: whether a query never sees the key of its own position.
        slot_positions: function of slots to positions, or None.
        key_length: positions of keys, with `slot_positions`, since there may be more slots.
        excluded: patterns that go by positions, whose pairs are left out.
        num_keys: only the first `num_keys` keys can be visible. None: any key.
    """

    pattern: Pattern
    causal: bool
    lead: int
    hides_self: bool = False
    slot_positions: Callable | None = None
    key_length: int | None = None
    excluded: tuple[Pattern, ...] = ()
    num_keys: int | None = None

    @property
    def period(self) -> int | None:
        """By how many slots a query and a key can move together without a change; None: by none."""
        patterns = (self.pattern, *self.excluded)
        periods = [pattern.period for pattern in patterns if pattern.period is not None]
        if self.slot_positions is not None or self.key_length is not None or len(periods) < len(patterns):
            return None
        return math.lcm(*periods)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        if self.slot_positions is not None:
            query, key = self.slot_positions(query), self.slot_positions(key)
        key = key - self.lead
        # In one group, whose ranks are in the order of the slots.
        places = [Place(slot, 0, {"group": 0, "rank": slot}) for slot in (query, key)]
        conditions = list(rule_conditions(self.pattern, *places))
        conditions += [~_all(rule_conditions(pattern, *places)) for pattern in self.excluded]
        if self.causal:
            conditions.append(key <= query)
        if self.hides_self:
            conditions.append(key != query)
        if self.key_length is not None:
            conditions.append(key < self.key_length)
        return _all(conditions) if conditions else True


@dataclasses.dataclass(frozen=True)
class AnyRule:
    """Whether one of some `SlotRule` lets a query slot see a key slot."""

    rules: tuple[SlotRule, ...]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return functools.reduce(operator.or_, (rule(query, key) for rule in self.rules))


@dataclasses.dataclass(frozen=True)
class EverySlot:
    """That a query slot sees each key slot."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return True


@dataclasses.dataclass(frozen=True)
class OwnSlot:
    """Whether a key slot has the position of a query slot; `lead` as in `Arrangement`."""

    lead: int = 0

    def __call__(self, slots: Pair, numbers: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        return slots[1] - self.lead == slots[0]


class Number(NamedTuple):
    """What one of the numbers of a slot is.

    Attributes:
        name: "position", "order" (see `Arrangement`), "group" (the document, or the group of an arrangement), or what a
            pattern calls it.
        leaf: the number of the leaf whose pattern calls it so, or None.
    """

    name: str
    leaf: int | None = None


GROUP, POSITION, ORDER = Number("group"), Number("position"), Number("order")


@dataclasses.dataclass(frozen=True)
class NumberRule:
    """Whether what is known of two slots lets the pair attend.

    Attributes:
        of_queries, of_keys: tuples of `Number`, what the numbers of either are, in their order.
        own: patterns and their numbers as leaves, whose rules are asked.
        excluded: likewise, those whose pairs are left out.
        hides_self: whether a query never sees the key of its own position.
    """

    of_queries: tuple[Number, ...]
    of_keys: tuple[Number, ...]
    own: tuple[tuple[Pattern, int], ...] = ()
    excluded: tuple[tuple[Pattern, int], ...] = ()
    hides_self: bool = False

    def __call__(self, query: Sequence[Tensor], key: Sequence[Tensor]) -> Tensor:
        known = [dict(zip(*each, strict=True)) for each in ((self.of_queries, query), (self.of_keys, key))]
        conditions = [condition for leaf in self.own for condition in _conditions(leaf, known)]
        conditions += [~_all(_conditions(leaf, known)) for leaf in self.excluded]
        if GROUP in self.of_queries:
            conditions.append(known[0][GROUP] == known[1][GROUP])
        if ORDER in self.of_queries:
            conditions.append(known[1][ORDER] <= known[0][ORDER])
        if self.hides_self:
            conditions.append(known[1][POSITION] != known[0][POSITION])
        return _all(conditions) if conditions else True


@dataclasses.dataclass(frozen=True)
class OwnPosition:
    """Whether a key has the position of a query; which of the numbers of either that is."""

    of_queries: int
    of_keys: int

    def __call__(self, slots: Pair, numbers: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        own, other = numbers
        return own[self.of_queries] == other[self.of_keys]


def _conditions(leaf, known):
    """Returns what the rule of a leaf says of queries and keys of which numbers are known."""
    pattern, index = leaf
    places = (
        Place(x.get(POSITION, 0), 0, {number.name: at for number, at in x.items() if number.leaf == index})
        for x in known
    )
    return rule_conditions(pattern, *places)


def _all(conditions):
    return functools.reduce(operator.and_, conditions)


HIDDEN = np.iinfo("int32").min  # the document of a key that no query sees; one of this number is the next


def pairs_in_order(arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call) -> SlotPairs | None:
    """Returns the pairs of an arrangement with an order of its own.

    Args:
        arrangement: an `Arrangement`.
        leaf: the `Leaf` that it arranges.
        inputs: an `Inputs`.
        call: a `Call`.

    Returns:
        `SlotPairs` of all slots in that order; None where there is none, or where more decides than slots, groups and
        ranks.
    """
    in_groups = arrangement.groups is not None
    if (
        arrangement.limits is None
        or in_groups != (inputs.known[leaf.index] is not None)
        or not all(inputs.known[x.index] is None or goes_by_groups_alone(x) for x in (leaf, *leaf.excluded))
        or (leaf.excluded and in_groups and arrangement.lead)
    ):
        return None
    slots, span = arrangement.slot_positions, inputs.options.span if leaf.pattern.in_span else None
    if span is not None and (in_groups or slots is not None):
        return None
    rule = SlotRule(
        leaf.pattern,
        call.causal,
        arrangement.lead,
        inputs.options.hide_self == "always",
        slots,
        None if slots is None else arrangement.key_length,
        () if in_groups else tuple(each.pattern for each in leaf.excluded),
    )
    numbers = _groups_in_order(arrangement, leaf, inputs) if in_groups else documents_in_order(arrangement, inputs)
    last = OwnSlot(arrangement.lead) if inputs.options.hide_self == "unless_alone" else None
    pairs = SlotPairs(rule, arrangement.limits, numbers, last)
    if span is not None:
        # A key that has the value of its successor is as far as it is itself.
        span_rule = SpanRule(span.ramp, 0 if leaf.pattern.reads_successors else arrangement.lead)
        pairs = pairs._replace(span=span_rule, span_reach=_reach(span, shape(inputs.query)[:3]))
    return if_it_can_be_asked(pairs)


def _reach(span, sizes):
    """Returns how far each query sees, float32 of `sizes` (B, N, T)."""
    reach = ops.cast(span.fraction, "float32") * span.window + span.first
    return ops.broadcast_to(reach[:, None], sizes)


def if_it_can_be_asked(pairs: SlotPairs) -> SlotPairs | None:
    """Returns pairs whose rules a kernel can ask, None of others."""
    if not can_ask(pairs.rule):
        return None
    if pairs.numbers is None:
        return pairs
    of_numbers, queries, keys = pairs.numbers
    return pairs if can_ask(of_numbers, (len(queries), len(keys))) else None


def goes_by_groups_alone(leaf: Leaf) -> bool:
    """Returns whether a rule reads nothing but groups and the ranks in them."""
    return type(leaf.pattern.rule).visible is GroupBand.visible  # that of a subclass may read positions as well


def _groups_in_order(arrangement, leaf, inputs):
    """Returns the `SlotNumbers` of an arrangement in groups."""
    keys = groups_of_keys(arrangement.groups)
    if inputs.masks.key_mask is not None and leaf.pattern.reads_successors:
        keys = ops.where(arrangement.in_order(inputs.masks.key_mask[:, None], -1), keys, 0)
    known = {GROUP: arrangement.groups}, {GROUP: keys}
    if leaf.excluded:
        positions = ops.arange(arrangement.key_length, dtype="int32")[None, None]
        for own in known:
            own[POSITION] = arrangement.in_order(positions, -1)
    for each in leaf.excluded:
        described = each.pattern.describe(inputs.known[each.index])
        for own, numbers in zip(known, described or (), strict=False):
            own |= {Number(name, each.index): arrangement.in_order(x, -1) for name, x in numbers.items()}
    return slot_numbers(known, excluded=numbered(leaf.excluded))


def numbered(leaves: Iterable[Leaf]) -> tuple[tuple[Pattern, int], ...]:
    """Returns the pattern and the number of each leaf, as a `NumberRule` has them."""
    return tuple((each.pattern, each.index) for each in leaves)


def slot_numbers(known: Sequence[dict[Number, Tensor]], **rule: Any) -> SlotNumbers:
    """Returns the `SlotNumbers` of what is known of queries and of keys.

    Args:
        known: pair of dictionaries of int32 (B, 1 or N, T) and (B, 1 or N, S).
        **rule: arguments of `NumberRule`.
    """
    own, other = known
    return SlotNumbers(NumberRule(tuple(own), tuple(other), **rule), tuple(own.values()), tuple(other.values()))


def documents_in_order(arrangement: Arrangement, inputs: Inputs) -> SlotNumbers | None:
    """Returns the `SlotNumbers` of documents and padding, None where there are neither."""
    masks = inputs.masks
    if masks.query_segments is None and masks.key_mask is None:
        return None
    batch, _, query_length, _ = shape(inputs.query)
    queries, keys = masks.query_segments, masks.key_segments
    if queries is None:
        queries, keys = (ops.zeros((batch, length), "int32") for length in (query_length, shape(inputs.key)[2]))
    queries, keys = (as_document(x) for x in (queries, keys))
    keys = keys if masks.key_mask is None else ops.where(masks.key_mask, keys, HIDDEN)
    return slot_numbers([{GROUP: arrangement.in_order(x[:, None], -1)} for x in (queries, keys)])


def as_document(x: Tensor) -> Tensor:
    """Returns documents, int, as int32 of which none is `HIDDEN`."""
    return ops.maximum(ops.cast(x, "int32"), HIDDEN + 1)


def pairs_in_groups(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, sizes: tuple[int, ...]
) -> SlotPairs | None:
    """Returns the pairs of the groups of an arrangement, each as if it were a head.

    Args:
        arrangement: an `Arrangement`.
        leaf: the `Leaf` that it arranges.
        inputs: an `Inputs`.
        call: a `Call`.
        sizes: (B, N, G, t, s).

    Returns:
        `SlotPairs` of t query slots and s key slots, with numbers (B, N G, t) and (B, N G, s); None where a kernel
        cannot ask what decides.
    """
    if not _is_told_by_numbers(arrangement, leaf, inputs):
        return None
    options, asked = inputs.options, () if arrangement.is_exact else (leaf,)
    known: tuple[dict[Number, Tensor], dict[Number, Tensor]] = ({}, {})
    if call.causal:
        _add(known, arrangement.order(), ORDER)
    if options.hide_self or not all(goes_by_groups_alone(each) for each in asked + leaf.excluded):
        _add(known, arrangement.pairs(), POSITION)
    for each in asked + leaf.excluded:
        _add_described(known, arrangement, each, leaf, inputs)
    documents = _documents_in_groups(arrangement, leaf, inputs)
    if documents is not None:
        _add(known, documents, GROUP)
    limits = 1 - sizes[3], sizes[4] - 1
    if not known[0]:
        return SlotPairs(EverySlot(), limits)
    numbers = slot_numbers(
        [{number: _of_groups(x, sizes, side) for number, x in own.items()} for side, own in enumerate(known)],
        own=numbered(asked),
        excluded=numbered(leaf.excluded),
        hides_self=options.hide_self == "always",
    )
    last = OwnPosition(*(tuple(own).index(POSITION) for own in known)) if options.hide_self == "unless_alone" else None
    return if_it_can_be_asked(SlotPairs(EverySlot(), limits, numbers, last))


def _is_told_by_numbers(arrangement, leaf, inputs):
    """Whether all that decides of a pair is a number of its query or of its key."""
    inside = arrangement.inside()
    return (
        not (inputs.options.span is not None and leaf.pattern.in_span)
        and not arrangement.lead
        and arrangement.counts() is None
        and (inside is None or shape(inside)[-2] == 1)  # unlike that of chunks, which depends on the query
    )


def _add(known, both, number):
    """Adds a number of queries and of keys to what is known of them."""
    for own, x in zip(known, both, strict=True):
        own[number] = x


def _add_described(known, arrangement, each, leaf, inputs):
    """Adds what the rule of a leaf reads beside positions; `leaf` is the one that is arranged."""
    described = inputs.known[each.index]
    if each is not leaf:
        described = each.pattern.describe(described)
    if described is not None:
        for own, numbers in zip(known, arrangement.known(described), strict=True):
            own |= {Number(name, each.index): x for name, x in numbers.items()}


def _documents_in_groups(arrangement, leaf, inputs):
    """Returns the documents of queries (.., t, 1) and of keys (.., 1, s), another of keys that are none; or None."""
    masks = token_masks(arrangement, leaf, inputs.masks)
    exists = arrangement.inside()
    if masks.key_mask is not None:
        exists = merge(exists, arrangement.keys(masks.key_mask[:, None], -1)[..., None, :])
    if masks.query_segments is None:
        nothing = ops.zeros((1, 1), "int32")
        return None if exists is None else (nothing, ops.where(exists, nothing, HIDDEN))
    queries = arrangement.queries(as_document(masks.query_segments)[:, None], -1)[..., :, None]
    keys = arrangement.keys(as_document(masks.key_segments)[:, None], -1)[..., None, :]
    return queries, keys if exists is None else ops.where(exists, keys, HIDDEN)


def _of_groups(x, sizes, side):
    """Returns numbers of queries (.., t, 1), side 0, or of keys (.., 1, s), as int32 (B, N G, t or s)."""
    batch, heads, groups, *slots = sizes
    x = ops.squeeze(ops.cast(x, "int32"), -1 if side == 0 else -2)
    return ops.reshape(ops.broadcast_to(x, (batch, heads, groups, slots[side])), (batch, heads * groups, slots[side]))
