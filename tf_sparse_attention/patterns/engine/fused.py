"""Attention of an arrangement by one kernel, where there is one: the same results without an array of scores."""

from collections.abc import Mapping, Sequence

from keras import ops

from tf_sparse_attention.kernels import mosaic, triton
from tf_sparse_attention.kernels.choice import LONGEST, MOSAIC, SHORTEST, TRITON, Kernel, SlotPairs, kernel_here
from tf_sparse_attention.kernels.rules import can_ask
from tf_sparse_attention.ops.attend import Attended, Dropout
from tf_sparse_attention.ops.blocks import are_known, shape
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.group_pairs import pairs_in_groups
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.engine.plan import Leaf
from tf_sparse_attention.patterns.engine.slot_pairs import documents_in_order, pairs_in_order
from tf_sparse_attention.patterns.engine.slot_rules import AnyRule, EverySlot, OwnSlot, SlotRule
from tf_sparse_attention.patterns.first import FirstGrid
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.types import Tensor

KERNELS = {MOSAIC: mosaic, TRITON: triton}
LARGEST_SHARE = 0.25  # of all blocks, those that a union reads; causal dense attention has half of them
SMALLEST_GROUP = 64  # slots on a side; of smaller groups a kernel would compute padding above all


def attend_fused(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Attended | None:
    """Returns attention inside the groups of an arrangement by the kernel that serves here.

    Args:
        arrangement: an `Arrangement`.
        leaf: the `Leaf` that it arranges.
        inputs: an `Inputs`.
        call: a `Call`.
        dropout: an `attend.Dropout`, or None.
        returns: what else than the output is asked for, by name.

    Returns:
        An `Attended` in the order of the sequence; None where no kernel serves.
    """
    kernel = kernel_here()
    if kernel is None or not _asks_for_a_kernel(kernel, leaf, inputs, call, dropout, returns):
        return None
    pairs = pairs_in_order(arrangement, leaf, inputs, call)
    if pairs is None:
        return _attend_groups(kernel, arrangement, leaf, inputs, call, returns)
    attended = _attend(kernel, _rows_in_order(arrangement, inputs), pairs, returns, inputs.options.soft_cap)
    return attended.restored(arrangement.from_order, dense=lambda weights: weights)


def attend_union_fused(
    leaves: Sequence[Leaf], inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Attended | None:
    """Returns attention to what any of several leaves shows by one run of the kernel that serves here.

    Args:
        leaves: list of `Leaf` with one softmax.
        inputs: as in `attend_fused`; so are `call`, `dropout`, `returns`.

    Returns:
        An `Attended`; None where no kernel serves, and where the pairs lie in so many blocks that the leaves cost less
        one by one.
    """
    kernel = kernel_here()
    if kernel is None or call.lead or inputs.options.span is not None:
        return None
    if not _are_one_rule_of_positions(leaves, inputs):
        return None
    if not all(_asks_for_a_kernel(kernel, leaf, inputs, call, dropout, returns) for leaf in leaves):
        return None
    hide_self = inputs.options.hide_self
    rule = AnyRule(tuple(_rule_of_positions(leaf, call, hide_self == "always") for leaf in leaves))
    lengths = shape(inputs.query)[2], shape(inputs.key)[2]
    pairs = SlotPairs(
        rule,
        (1 - lengths[0], lengths[1] - 1),
        documents_in_order(Arrangement(), inputs),
        OwnSlot() if hide_self == "unless_alone" else None,
        reach=max(leaf.pattern.reach for leaf in leaves),
    )
    if not can_ask(rule) or KERNELS[kernel.name].share_of_blocks(pairs, lengths) > LARGEST_SHARE:
        return None
    return _attend(kernel, (inputs.query, inputs.key, inputs.value), pairs, returns, inputs.options.soft_cap)


def attend_shared_fused(
    query: Tensor, key: Tensor, value: Tensor, dropout: Dropout | None, soft_cap: float | None = None
) -> Attended | None:
    """Returns attention of all rows to the same keys, with its log-sum-exp, by the kernel that serves here.

    Args:
        query: scaled queries (B, N, T, H).
        key: (N, M, H).
        value: (N, M, Hv).
        dropout: an `attend.Dropout`, or None.
        soft_cap: see `AttentionOptions`.

    Returns:
        An `Attended`; None where no kernel serves.
    """
    kernel, (batch, _, length, _) = kernel_here(), shape(query)
    if kernel is None or not are_known(batch, length) or batch == 0 or length < SHORTEST or _drops(dropout):
        return None
    rows = query, *(ops.broadcast_to(x[None], (batch, *shape(x))) for x in (key, value))
    if not KERNELS[kernel.name].can_attend(*rows, kernel.interpret):
        return None
    pairs = SlotPairs(EverySlot(), (1 - length, shape(key)[1] - 1))
    return _attend(kernel, rows, pairs, {"return_log_sum_exp": True}, soft_cap)


def _attend(
    kernel: Kernel, rows: Sequence[Tensor], pairs: SlotPairs, returns: Mapping, soft_cap: float | None
) -> Attended:
    pairs = pairs._replace(soft_cap=soft_cap)
    output, log_sum_exp = KERNELS[kernel.name].attend_slots(*rows, pairs, kernel.interpret)
    return Attended(output, log_sum_exp=log_sum_exp if returns["return_log_sum_exp"] else None)


def _attend_groups(kernel, arrangement, leaf, inputs, call, returns):
    """Returns attention in each group of an arrangement as if it were a head; None where no kernel serves."""
    groups, *slots = *shape(arrangement.query_positions())[-2:], shape(arrangement.key_positions())[-1]
    if not are_known(groups, *slots) or min(slots) < SMALLEST_GROUP:
        return None
    batch, heads = shape(inputs.query)[:2]
    sizes = batch, heads, groups
    pairs = pairs_in_groups(arrangement, leaf, inputs, call, (*sizes, *slots))
    if pairs is None:
        return None
    rows = [arrangement.queries(inputs.query), arrangement.keys(inputs.key), arrangement.keys(inputs.value)]
    if rows[1].shape[1] != heads and not arrangement.sorts_tokens:
        return None  # groups stand between a head and those that share its keys
    rows = [ops.reshape(repeat_key_heads(x, heads), (batch, heads * groups, *shape(x)[3:])) for x in rows]
    if not KERNELS[kernel.name].can_attend(*rows, kernel.interpret):
        return None
    attended = _attend(kernel, rows, pairs, returns, inputs.options.soft_cap)
    return attended.restored(
        lambda x: arrangement.restore(ops.reshape(x, (*sizes, *shape(x)[2:]))), dense=lambda weights: weights
    )


def _asks_for_a_kernel(kernel, leaf, inputs, call, dropout, returns):
    """Whether nothing is asked for but a softmax over the pairs that rules decide, of a size that pays."""
    masks, options = inputs.masks, inputs.options
    batch, heads, length, _ = shape(inputs.query)
    key_length = shape(inputs.key)[2]
    return (
        are_known(batch, heads, length, key_length)
        and batch > 0
        and SHORTEST <= max(length, key_length) <= LONGEST
        and KERNELS[kernel.name].can_attend(inputs.query, inputs.key, inputs.value, kernel.interpret)
        and not returns["return_weights"]
        and not _drops(dropout)
        and not options.position.has_bias
        and masks.attention_mask is None
        and not any(each.pattern.uses_starts and call.starts is not None for each in (leaf, *leaf.excluded))
    )


def _drops(dropout):
    return dropout is not None and dropout.rate != 0


def _are_one_rule_of_positions(leaves, inputs):
    """Whether leaves go by positions alone, and a pair that several show counts once."""
    return all(
        inputs.known[leaf.index] is None and not leaf.reads_successors and len(leaf.excluded) == number
        for number, leaf in enumerate(leaves)
    )


def _rule_of_positions(leaf, call, hides_self):
    """Returns the `SlotRule` of a leaf whose slots are positions."""
    arrangement = leaf.pattern.arrange(call)
    num_keys = arrangement.count if isinstance(arrangement, FirstGrid) else None
    return SlotRule(leaf.pattern, call.causal, 0, hides_self, num_keys=num_keys)


def _rows_in_order(arrangement, inputs):
    """Returns queries, keys and values in the order of the arrangement."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if arrangement.groups is None or key is not query or value.dtype != query.dtype:
        return [arrangement.in_order(x) for x in (query, key, value)]
    # Side by side: a TPU reads a tile of 128 numbers in several rows for each row that it gathers.
    both = arrangement.in_order(ops.concatenate([query, value], axis=-1))
    query, value = ops.split(both, [query.shape[-1]], axis=-1)
    return query, query, value
