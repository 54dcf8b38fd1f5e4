"""Attention of an arrangement by one kernel, where there is one: the same results without an array of scores."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from keras import ops

from tf_sparse_attention.kernels import splash, triton
from tf_sparse_attention.kernels.choice import LONGEST, SHORTEST, SPLASH, TRITON, SlotPairs, kernel_here
from tf_sparse_attention.kernels.rules import can_ask, evaluate
from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.blocks import are_known, shape
from tf_sparse_attention.ops.groups import groups_of_keys
from tf_sparse_attention.ops.masks import constant_mask, merge, negate
from tf_sparse_attention.patterns.call import Call
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.engine.visible import visible_pairs
from tf_sparse_attention.patterns.groups import GroupBand
from tf_sparse_attention.patterns.pattern import Pattern, rule_conditions
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor

KERNELS = {SPLASH: splash, TRITON: triton}
LARGEST_SHARE = 0.25  # of all blocks, those that a union reads; causal dense attention has half of them
HIDDEN = np.iinfo("int32").min  # the document of a key that no query sees; one of this number is the next


@dataclasses.dataclass(frozen=True)
class SlotRule:
    """Whether a query slot sees a key slot of its group, in the order of an arrangement.

    Attributes:
        pattern: the `Pattern` whose rule it is.
        causal: whether later keys are hidden.
        lead: see `Arrangement`; so is `slot_positions`.
        hides_self: whether a query does not see the key of its own position.
        key_length: positions of keys, with `slot_positions`, since there may be more slots.
    """

    pattern: Pattern
    causal: bool
    lead: int
    hides_self: bool
    slot_positions: Callable | None = None
    key_length: int | None = None

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        if self.slot_positions is not None:
            query, key = self.slot_positions(query), self.slot_positions(key)
        key = key - self.lead
        # In one group, whose ranks are in the order of the slots.
        places = (Place(slot, 0, {"group": 0, "rank": slot}) for slot in (query, key))
        conditions = list(rule_conditions(self.pattern, *places))
        if self.causal:
            conditions.append(key <= query)
        if self.hides_self:
            conditions.append(key != query)
        if self.key_length is not None:
            conditions.append(key < self.key_length)
        return functools.reduce(operator.and_, conditions) if conditions else True


@dataclasses.dataclass(frozen=True)
class AnyRule:
    """Whether one of some `SlotRule` lets a query slot see a key slot."""

    rules: tuple[SlotRule, ...]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return functools.reduce(operator.or_, (rule(query, key) for rule in self.rules))


def attend_fused(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Tensor | None:
    """Returns attention inside the groups of an arrangement, (B, N, T, Hv), by the kernel that serves here.

    Args:
        arrangement: an `Arrangement`.
        leaf: the `Leaf` that it arranges.
        inputs: an `Inputs`.
        call: a `Call`.
        dropout: an `attend.Dropout`, or None.
        returns: what else than the output is asked for, by name.

    Returns:
        The output in the order of the sequence, as `attend` has it; None where no kernel serves.
    """
    kernel, limits = kernel_here(), arrangement.limits
    if kernel is None or limits is None or leaf.excluded or not _rule_is_of_slots(arrangement, leaf, inputs):
        return None
    if not _asks_for_slots_alone(kernel, leaf, inputs, call, dropout, returns):
        return None
    slots = arrangement.slot_positions
    key_length = None if slots is None else arrangement.key_length
    hides_self = inputs.options.hide_self is not None
    rule = SlotRule(leaf.pattern, call.causal, arrangement.lead, hides_self, slots, key_length)
    if not can_ask(rule):
        return None
    pairs = SlotPairs(rule, limits, *_groups(arrangement, leaf, inputs))
    query, key, value = _rows_in_order(arrangement, inputs)
    output = KERNELS[kernel.name].attend_slots(query, key, value, pairs, kernel.interpret)
    if not _every_query_sees_itself(pairs, arrangement, inputs):
        output = _where_something_is_seen(output, value, [(leaf, arrangement, arrangement.joined)], inputs, call)
    return arrangement.from_order(output)


def attend_union_fused(
    leaves: Sequence[Leaf], inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Tensor | None:
    """Returns attention to what any of several leaves shows, (B, N, T, Hv), by one run of the kernel that serves here.

    Args:
        leaves: list of `Leaf` with one softmax.
        inputs: as in `attend_fused`; so are `call`, `dropout`, `returns`.

    Returns:
        The output; None where no kernel serves, and where the pairs lie in so many blocks that the leaves cost less one
        by one.
    """
    kernel = kernel_here()
    if kernel is None or call.lead or not _are_one_rule_of_positions(leaves, inputs):
        return None
    if not all(_asks_for_slots_alone(kernel, leaf, inputs, call, dropout, returns) for leaf in leaves):
        return None
    arrangements = [each for each in (leaf.pattern.arrange(call) for leaf in leaves) if isinstance(each, Arrangement)]
    if len(arrangements) < len(leaves):  # some have several
        return None
    hides_self = inputs.options.hide_self is not None
    rule = AnyRule(tuple(SlotRule(leaf.pattern, call.causal, 0, hides_self) for leaf in leaves))
    if not can_ask(rule):
        return None
    lengths = shape(inputs.query)[2], shape(inputs.key)[2]
    query_groups, key_groups = _groups(Arrangement(), leaves[0], inputs)
    reach = max(leaf.pattern.reach for leaf in leaves)
    pairs = SlotPairs(rule, (1 - lengths[0], lengths[1] - 1), query_groups, key_groups, reach)
    if KERNELS[kernel.name].share_of_blocks(pairs, lengths) > LARGEST_SHARE:
        return None
    output = KERNELS[kernel.name].attend_slots(inputs.query, inputs.key, inputs.value, pairs, kernel.interpret)
    if _every_query_sees_itself(pairs, arrangements[0], inputs):
        return output
    parts = [(leaf, each, each.restore) for leaf, each in zip(leaves, arrangements, strict=True)]
    return _where_something_is_seen(output, inputs.value, parts, inputs, call)


def _rule_is_of_slots(arrangement, leaf, inputs):
    """Whether a rule reads nothing but positions, or the groups of an arrangement that has them and ranks there."""
    if arrangement.groups is None:
        return inputs.known[leaf.index] is None
    return type(leaf.pattern.rule).visible is GroupBand.visible  # one of a subclass may read positions as well


def _are_one_rule_of_positions(leaves, inputs):
    """Whether leaves go by positions alone, and a pair that several show counts once."""
    return all(
        inputs.known[leaf.index] is None and not leaf.pattern.reads_successors and len(leaf.excluded) == number
        for number, leaf in enumerate(leaves)
    )


def _asks_for_slots_alone(kernel, leaf, inputs, call, dropout, returns):
    """Whether nothing is asked for but a softmax over the pairs that slots and groups decide, of a size that pays."""
    masks, options = inputs.masks, inputs.options
    batch, heads, length, _ = shape(inputs.query)
    key_length = shape(inputs.key)[2]
    return (
        are_known(batch, heads, length, key_length)
        and SHORTEST <= max(length, key_length) <= LONGEST
        and KERNELS[kernel.name].can_attend(inputs.query, inputs.key, inputs.value, kernel.interpret)
        and not any(returns.values())
        and (dropout is None or dropout.rate == 0)
        and not options.position.has_bias
        and (options.span is None or not leaf.pattern.in_span)
        and masks.attention_mask is None
        and not (leaf.pattern.uses_starts and call.starts is not None)
    )


def _groups(arrangement, leaf, inputs):
    """Returns the groups of queries and of keys, int32 (B, 1 or N, T) and (B, 1 or N, S), or (None, None)."""
    masks = inputs.masks
    if arrangement.groups is not None:
        keys = groups_of_keys(arrangement.groups)
        if masks.key_mask is not None and leaf.pattern.reads_successors:
            keys = ops.where(arrangement.in_order(masks.key_mask[:, None], -1), keys, 0)
        return arrangement.groups, keys
    if masks.query_segments is None and masks.key_mask is None:
        return None, None
    batch, _, query_length, _ = shape(inputs.query)
    queries, keys = masks.query_segments, masks.key_segments
    if queries is None:
        queries, keys = (ops.zeros((batch, length), "int32") for length in (query_length, shape(inputs.key)[2]))
    queries, keys = (ops.maximum(ops.cast(x, "int32"), HIDDEN + 1) for x in (queries, keys))
    keys = keys if masks.key_mask is None else ops.where(masks.key_mask, keys, HIDDEN)
    return tuple(arrangement.in_order(x[:, None], -1) for x in (queries, keys))


def _rows_in_order(arrangement, inputs):
    """Returns queries, keys and values in the order of the arrangement."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if arrangement.groups is None or key is not query or value.dtype != query.dtype:
        return [arrangement.in_order(x) for x in (query, key, value)]
    # Side by side: a TPU reads a tile of 128 numbers in several rows for each row that it gathers.
    both = arrangement.in_order(ops.concatenate([query, value], axis=-1))
    query, value = ops.split(both, [query.shape[-1]], axis=-1)
    return query, query, value


def _every_query_sees_itself(pairs, arrangement, inputs):
    """Whether each query is known to see the key of its own position, whatever else."""
    length, key_length = shape(inputs.query)[2], shape(inputs.key)[2]
    if pairs.query_groups is not None or arrangement.lead or length != key_length:
        return False
    slots = np.arange(length, dtype="int32")
    return bool(evaluate(pairs.rule, slots, slots).all())


def _where_something_is_seen(output, values, parts, inputs, call):
    """Returns the output with zeros where a query sees nothing, and its own value where it sees itself alone.

    Args:
        output: (B, N, T', Hv), in some order.
        values: (B, N, T', Hv), those of the queries' own positions.
        parts: list of a `Leaf`, its arrangement, and the function that puts its groups in that order.
    """
    visible = [visible_pairs(arrangement, leaf, inputs, call) for leaf, arrangement, _ in parts]
    if inputs.options.hide_self != "unless_alone":
        return ops.where(_rows_with(visible, parts, output), output, 0)
    own = [arrangement.own_key() for _, arrangement, _ in parts]
    selves = _rows_with(list(map(merge, visible, own)), parts, output)
    others = _rows_with([merge(seen, negate(each)) for seen, each in zip(visible, own, strict=True)], parts, output)
    return ops.where(others, output, ops.where(selves, values, 0))


def _rows_with(masks, parts, output):
    """Returns which queries have a pair in one of the masks of groups, bool (B, N, T', 1)."""
    found = []
    for mask, (_, arrangement, put) in zip(masks, parts, strict=True):
        if mask is None:  # all pairs
            mask = np.ones((1, 1), bool)
        mask = constant_mask(mask) if isinstance(mask, np.ndarray) else mask
        rows = ops.any(mask, axis=-1, keepdims=True)
        slots = shape(arrangement.query_positions())[-2:]
        found.append(put(ops.broadcast_to(rows, (*shape(output)[:2], *slots, 1))))
    return functools.reduce(ops.logical_or, found)
