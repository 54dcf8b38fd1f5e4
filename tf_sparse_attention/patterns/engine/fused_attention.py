"""Attention of an arrangement by a kernel, if one supports it: the same results without an array of scores."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from keras import ops

from tf_sparse_attention.kernels.availability import (
    MAX_LENGTH,
    MIN_LENGTH,
    MOSAIC,
    Decision,
    Kernel,
    UnsupportedByKernel,
    available_kernel,
    record,
)
from tf_sparse_attention.kernels.kernel_mask import KernelMask, KernelSpec, MaskData, check_traceable, visible_share
from tf_sparse_attention.ops.attend import Attended, Dropout
from tf_sparse_attention.ops.shapes import are_known, repeat_key_heads, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.head_plans import Inputs, Leaf
from tf_sparse_attention.patterns.engine.pattern_mask import (
    PatternMask,
    grouped_mask,
    keeps_order,
    ordered_mask,
    union_mask,
)
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.types import Tensor

MAX_VISIBLE_SHARE = 0.25  # of all blocks, for a union; causal dense attention has half of them
MIN_GROUP = 64  # queries and keys of a group; kernels would pad smaller groups
UNKNOWN = "the batch size or a length is unknown when the program is made"


def attend_fused(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Attended | None:
    """Compute attention of one arrangement by a kernel.

    Args:
        arrangement: an `Arrangement`.
        leaf: its `Leaf`.
        inputs: an `Inputs`.
        call: a `Call`.
        dropout: an `attend.Dropout`, or None.
        returns: `return_weights` and `return_log_sum_exp`.

    Returns:
        An `Attended` in the order of the sequence. None: no kernel supports it.
    """

    def attend(kernel):
        _check_call(kernel, inputs, dropout, returns)
        if not keeps_order(arrangement, leaf, inputs):
            return _attend_groups(kernel, arrangement, leaf, inputs, call, returns)
        mask, data = ordered_mask(arrangement, leaf, inputs, call)
        attended = _run(kernel, _rows_in_order(arrangement, inputs), mask, data, returns)
        return attended.restored(arrangement.from_kernel_order, dense=lambda weights: weights)

    return _or_none(attend, [leaf])


def attend_union_fused(
    leaves: Sequence[Leaf], inputs: Inputs, call: Call, dropout: Dropout | None, returns: Mapping
) -> Attended | None:
    """Compute attention of several leaves with one softmax by one run of a kernel.

    Args:
        leaves: list of `Leaf`.
        inputs, call, dropout, returns: as in `attend_fused`.

    Returns:
        An `Attended`. None: no kernel supports it, or the leaves cost less one by one.
    """

    def attend(kernel):
        if call.lead or inputs.options.span is not None:
            raise UnsupportedByKernel("a union with segment memory or an adaptive span")
        for number, leaf in enumerate(leaves):
            if inputs.selections[leaf.index] is not None or leaf.reads_successors or len(leaf.excluded) != number:
                raise UnsupportedByKernel("a union of patterns that are not functions of positions alone")
            _check_call(kernel, inputs, dropout, returns)
        mask, data = union_mask(leaves, inputs, call)
        return _run(kernel, (inputs.query, inputs.key, inputs.value), mask, data, returns, MAX_VISIBLE_SHARE)

    return _or_none(attend, leaves)


def attend_shared_fused(
    query: Tensor, key: Tensor, value: Tensor, dropout: Dropout | None, soft_cap: float | None = None
) -> Attended | None:
    """Compute attention of all rows to the same keys, with its log-sum-exp, by a kernel.

    Args:
        query: scaled queries (B, N, T, H).
        key: (N, M, H).
        value: (N, M, Hv).
        dropout: an `attend.Dropout`, or None.
        soft_cap: see `AttentionOptions`.

    Returns:
        An `Attended`. None: no kernel supports it.
    """

    def attend(kernel):
        batch, _, length, _ = shape(query)
        _check_sizes(batch, length)
        _check_dropout(dropout)
        rows = query, *(ops.broadcast_to(x[None], (batch, *shape(x))) for x in (key, value))
        function = PatternMask()
        mask = KernelMask(function, (function.region((1 - length, shape(key)[1] - 1)),), soft_cap=soft_cap)
        return _run(kernel, rows, mask, ({}, {}), {"return_log_sum_exp": True})

    return _or_none(attend, ())


def _or_none(attend: Callable[[Kernel], Attended], leaves: Sequence[Leaf]) -> Attended | None:
    """Return the result of a kernel, or None if it is unsupported, and record which it is.

    The leaves of a union that is unsupported follow one by one, and are recorded then.
    """
    part = ", ".join(type(leaf.pattern).__name__ for leaf in leaves) or "persistent vectors"
    try:
        kernel = available_kernel()
        attended = attend(kernel)
    except UnsupportedByKernel as error:
        if len(leaves) < 2:
            record(Decision(part, None, str(error)))
        return None
    record(Decision(part, kernel.name))
    return attended


def _kernel_module(kernel: Kernel) -> ModuleType:
    """Import the module of a kernel on first use."""
    if kernel.name == MOSAIC:
        from tf_sparse_attention.kernels import mosaic

        return mosaic
    from tf_sparse_attention.kernels import triton

    return triton


def _run(
    kernel: Kernel,
    rows: Sequence[Tensor],
    mask: KernelMask,
    data: MaskData,
    returns: Mapping,
    max_visible_share: float = 1.0,
) -> Attended:
    """Run a kernel if it supports queries, keys, values and a mask with not too many visible blocks."""
    module, lengths = _kernel_module(kernel), (shape(rows[0])[2], shape(rows[1])[2])
    module.check_arrays(*rows, kernel.interpret)
    names = tuple(data[0]), tuple(data[1])
    spec = KernelSpec(mask, names, lengths, module.block_sizes(mask, lengths), kernel.interpret)
    check_traceable(spec)
    if max_visible_share < 1 and visible_share(spec) > max_visible_share:
        raise UnsupportedByKernel("too many blocks have a visible pair")
    output, log_sum_exp = module.attend(spec, *rows, data)
    return Attended(output, log_sum_exp=log_sum_exp if returns["return_log_sum_exp"] else None)


def _attend_groups(kernel, arrangement, leaf, inputs, call, returns):
    """Compute attention in each group of an arrangement as if it were a head."""
    batch, heads = shape(inputs.query)[:2]
    groups, *lengths = *shape(arrangement.query_positions())[-2:], shape(arrangement.key_positions())[-1]
    if not are_known(groups, *lengths):
        raise UnsupportedByKernel(UNKNOWN)
    if min(lengths) < MIN_GROUP:
        raise UnsupportedByKernel(f"groups have {min(lengths)} queries or keys; kernels start at {MIN_GROUP}")
    sizes = batch, heads, groups
    mask, data = grouped_mask(arrangement, leaf, inputs, call, (*sizes, *lengths))
    rows = [arrangement.queries(inputs.query), arrangement.keys(inputs.key), arrangement.keys(inputs.value)]
    if rows[1].shape[1] != heads and not arrangement.sorts_tokens:
        raise UnsupportedByKernel("grouped-query heads whose keys are gathered in groups")
    rows = [ops.reshape(repeat_key_heads(x, heads), (batch, heads * groups, *shape(x)[3:])) for x in rows]
    return _run(kernel, rows, mask, data, returns).restored(
        lambda x: arrangement.restore(ops.reshape(x, (*sizes, *shape(x)[2:]))), dense=lambda weights: weights
    )


def _check_call(kernel, inputs, dropout, returns):
    """Raise `UnsupportedByKernel` unless a call is a softmax over masked pairs, of a size that pays."""
    masks, options = inputs.masks, inputs.options
    batch, heads, length, _ = shape(inputs.query)
    if not are_known(heads):
        raise UnsupportedByKernel(UNKNOWN)
    _check_sizes(batch, length, shape(inputs.key)[2])
    _kernel_module(kernel).check_arrays(inputs.query, inputs.key, inputs.value, kernel.interpret)
    if returns["return_weights"]:
        raise UnsupportedByKernel("`return_attention_scores` needs all weights")
    _check_dropout(dropout)
    if options.position.has_bias:
        raise UnsupportedByKernel(f'position="{options.position.name}" adds a bias to the scores')
    if masks.attention_mask is not None:
        raise UnsupportedByKernel("`attention_mask` is an array of pairs")


def _check_sizes(batch, *lengths):
    if not are_known(batch, *lengths):
        raise UnsupportedByKernel(UNKNOWN)
    if batch == 0:
        raise UnsupportedByKernel("the batch is empty")
    longest = max(lengths)
    if longest < MIN_LENGTH:
        raise UnsupportedByKernel(f"the sequence has {longest} positions; kernels start at {MIN_LENGTH}")
    if longest > MAX_LENGTH:
        raise UnsupportedByKernel(f"the sequence has {longest:,} positions; kernels end at {MAX_LENGTH:,}")


def _check_dropout(dropout):
    if dropout is not None and dropout.rate != 0:
        raise UnsupportedByKernel("attention dropout")


def _rows_in_order(arrangement, inputs):
    """Return queries, keys and values in the order of the arrangement."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if arrangement.groups is None or key is not query or value.dtype != query.dtype:
        return [arrangement.to_kernel_order(x) for x in (query, key, value)]
    # One gather of both: a TPU reads a tile of 128 channels of several rows for each row that it gathers.
    both = arrangement.to_kernel_order(ops.concatenate([query, value], axis=-1))
    query, value = ops.split(both, [query.shape[-1]], axis=-1)
    return query, query, value
