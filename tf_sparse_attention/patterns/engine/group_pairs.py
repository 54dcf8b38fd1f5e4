"""Which pairs attend in each group of an arrangement, as kernels are told: groups as heads, by numbers of slots."""

from keras import ops

from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.engine.slot_pairs import (
    HIDDEN,
    as_document,
    goes_by_groups_alone,
    if_it_can_be_asked,
    numbered,
    slot_numbers,
)
from tf_sparse_attention.patterns.engine.slot_rules import GROUP, ORDER, POSITION, EverySlot, Number, OwnPosition
from tf_sparse_attention.patterns.engine.visible import token_masks
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.types import Tensor


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
        described = each.features(described)
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
