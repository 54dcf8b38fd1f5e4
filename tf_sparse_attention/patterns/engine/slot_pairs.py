"""Which pairs of slots attend in the order of an arrangement, as kernels are told."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from keras import ops

from tf_sparse_attention.kernels.choice import SlotNumbers, SlotPairs, SpanRule
from tf_sparse_attention.kernels.rules import can_ask
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.groups import groups_of_keys
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.engine.slot_rules import GROUP, POSITION, Number, NumberRule, OwnSlot, SlotRule
from tf_sparse_attention.patterns.group_band import GroupBand
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.types import Tensor

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
        span_rule = SpanRule(span.ramp, 0 if leaf.reads_successors else arrangement.lead)
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
    return type(leaf.pattern).visible is GroupBand.visible  # that of a subclass may read positions as well


def _groups_in_order(arrangement, leaf, inputs):
    """Returns the `SlotNumbers` of an arrangement in groups."""
    keys = groups_of_keys(arrangement.groups)
    if inputs.masks.key_mask is not None and leaf.reads_successors:
        keys = ops.where(arrangement.in_order(inputs.masks.key_mask[:, None], -1), keys, 0)
    known = {GROUP: arrangement.groups}, {GROUP: keys}
    if leaf.excluded:
        positions = ops.arange(arrangement.key_length, dtype="int32")[None, None]
        for own in known:
            own[POSITION] = arrangement.in_order(positions, -1)
    for each in leaf.excluded:
        described = each.features(inputs.known[each.index])
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
