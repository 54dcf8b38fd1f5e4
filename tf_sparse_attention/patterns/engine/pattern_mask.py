"""Kernel masks of patterns: the mask function of a pattern, its data, and the regions of an arrangement.

Data are named "position", "order" (see `Arrangement`), "segment" (the document), and "3.rank" for the feature "rank" of
leaf number 3.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from tf_sparse_attention.kernels.availability import UnsupportedByKernel
from tf_sparse_attention.kernels.kernel_mask import SPAN_REACH, KernelMask, MaskData, Region, SpanRamp
from tf_sparse_attention.ops.gather import mark_missing_keys
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.head_plans import Inputs, Leaf
from tf_sparse_attention.patterns.first import FirstGrid
from tf_sparse_attention.patterns.group_band import GroupBand
from tf_sparse_attention.patterns.pattern import Call, Pattern, rule_conditions
from tf_sparse_attention.patterns.selection import TokenInfo
from tf_sparse_attention.types import Tensor

NO_SEGMENT = np.iinfo("int32").min  # the document of a masked key; ids of documents are greater
NumberedPatterns: TypeAlias = tuple[tuple[Pattern, int], ...]  # patterns with their numbers as leaves
Data: TypeAlias = Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class PatternMask:
    """Mask function of patterns, causality and documents. Without data it shows all pairs that some data would show.

    Attributes:
        shown: patterns, at least one of which must show a pair. None given: any pair.
        excluded: patterns whose pairs do not attend.
        causal: whether later keys are masked.
        hide_self: whether the key at the query's own position is masked.
        lead: see `Arrangement`.
        positions_of: function of indices to positions, see `Arrangement.slot_positions`. None: indices are positions.
        key_length: number of keys, if padding is between them; or None.
        by_rank: whether indices are ranks, of tokens sorted by group, rather than positions.
        has_documents: whether documents are packed. Their starts are not available.
    """

    shown: NumberedPatterns = ()
    excluded: NumberedPatterns = ()
    causal: bool = False
    hide_self: bool = False
    lead: int = 0
    positions_of: Callable | None = None
    key_length: int | None = None
    by_rank: bool = False
    has_documents: bool = False

    def __call__(self, query_index: Tensor, key_index: Tensor, query_data: Data, key_data: Data) -> Any:
        if self.positions_of is not None:
            query_index, key_index = self.positions_of(query_index), self.positions_of(key_index)
        sides = (query_index, query_data), (key_index - self.lead, key_data)
        query, key = (data.get("position", index) for index, data in sides)

        def is_visible(pattern, number):
            tokens = (
                TokenInfo(position, self._features(number, *side), _no_starts if self.has_documents else None)
                for position, side in zip((query, key), sides, strict=True)
            )
            return _all(rule_conditions(pattern, *tokens))

        conditions = [is_visible(*each) ^ True for each in self.excluded]
        if self.shown:
            conditions.append(functools.reduce(operator.or_, (is_visible(*each) for each in self.shown)))
        if self.causal:
            conditions.append(key_data.get("order", key) <= query_data.get("order", query))
        if self.hide_self:
            conditions.append(key != query)
        if self.key_length is not None:
            conditions.append(key < self.key_length)
        if "segment" in query_data:
            conditions.append(query_data["segment"] == key_data["segment"])
        return _all(conditions)

    def _features(self, number, index, data):
        """Return the features of tokens for the pattern of a leaf."""
        prefix = f"{number}."
        features = {name.removeprefix(prefix): x for name, x in data.items() if name.startswith(prefix)}
        return {"group": 0, "rank": index, **features} if self.by_rank else features

    def region(self, limits: tuple[int, int], num_keys: int | None = None) -> Region:
        """Return the pairs within limits that the mask shows without data."""
        patterns = [pattern for pattern, _ in self.shown + self.excluded]
        periods = [pattern.period for pattern in patterns if pattern.period is not None]
        is_periodic = self.positions_of is None and self.key_length is None and len(periods) == len(patterns)
        return Region(self, limits, num_keys, math.lcm(*periods) if is_periodic and num_keys is None else None)


@dataclasses.dataclass(frozen=True)
class SelfMask:
    """Mask function of the key at the query's own position; `lead` as in `Arrangement`."""

    lead: int = 0

    def __call__(self, query_index: Tensor, key_index: Tensor, query_data: Data, key_data: Data) -> Tensor:
        if "position" in query_data:
            return query_data["position"] == key_data["position"]
        return key_index - self.lead == query_index


def _no_starts():
    raise UnsupportedByKernel("the first tokens of each document depend on `segment_ids`")


def _all(conditions):
    return functools.reduce(operator.and_, conditions, True)


def keeps_order(arrangement: Arrangement, leaf: Leaf, inputs: Inputs) -> bool:
    """Return whether an arrangement only reorders tokens, and indices, groups and ranks decide on pairs."""
    in_groups = arrangement.groups is not None
    return (
        arrangement.limits is not None
        and in_groups == (inputs.selections[leaf.index] is not None)
        and all(inputs.selections[x.index] is None or _reads_only_groups(x) for x in (leaf, *leaf.excluded))
        and not (leaf.excluded and in_groups and arrangement.lead)
        and not (_has_span(leaf, inputs) and (in_groups or arrangement.slot_positions is not None))
    )


def ordered_mask(arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call) -> tuple[KernelMask, MaskData]:
    """Return the mask of all tokens in the order of an arrangement, one that `keeps_order`, and its data.

    Args:
        arrangement: an `Arrangement`.
        leaf: its `Leaf`.
        inputs: an `Inputs`.
        call: a `Call`.
    """
    in_groups, positions_of, options = arrangement.groups is not None, arrangement.slot_positions, inputs.options
    excluded = _numbered(leaf.excluded)
    region = PatternMask(
        _numbered([leaf]),
        () if in_groups else excluded,
        call.causal,
        options.hide_self == "always",
        arrangement.lead,
        positions_of,
        None if positions_of is None else arrangement.key_length,
        by_rank=in_groups,
        has_documents=call.starts is not None,
    )
    data = _groups_in_order(arrangement, leaf, inputs) if in_groups else _segments_in_order(arrangement, inputs)
    regions = (region.region(arrangement.limits),)  # type: ignore[arg-type]  # there are limits if it `keeps_order`
    mask = _kernel_mask(dataclasses.replace(region, excluded=excluded), regions, inputs)
    span = options.span
    if span is None or leaf.pattern.reach is None:
        return mask, data
    reach = ops.cast(span.fraction, "float32") * span.window + span.first
    reaches = {SPAN_REACH: ops.broadcast_to(reach[:, None], shape(inputs.query)[:3])}
    # A key with the value of its successor is as far as the key itself.
    ramp = SpanRamp(span.ramp, 0 if leaf.reads_successors else arrangement.lead)
    return mask._replace(span=ramp), ({**reaches, **data[0]}, data[1])


def union_mask(leaves: Sequence[Leaf], inputs: Inputs, call: Call) -> tuple[KernelMask, MaskData]:
    """Return the mask of several leaves with one softmax, which read positions only, and its data."""
    lengths, options = (shape(inputs.query)[2], shape(inputs.key)[2]), inputs.options
    has_documents = call.starts is not None
    function = PatternMask(
        _numbered(leaves), (), call.causal, options.hide_self == "always", has_documents=has_documents
    )
    regions = []
    for leaf, own in zip(leaves, function.shown, strict=True):
        arrangement = leaf.pattern.arrange(call)
        limits = arrangement.limits if arrangement.slot_positions is None else None
        limits = limits or (1 - lengths[0], lengths[1] - 1)
        num_keys = arrangement.count if isinstance(arrangement, FirstGrid) else None
        regions.append(dataclasses.replace(function, shown=(own,)).region(limits, num_keys))
    mask = _kernel_mask(function, tuple(regions), inputs)
    return mask._replace(reach=max(leaf.pattern.reach or 0 for leaf in leaves)), _segments_in_order(
        Arrangement(), inputs
    )


def grouped_mask(
    arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call, sizes: tuple[int, ...]
) -> tuple[KernelMask, MaskData]:
    """Return the mask of t queries and s keys in each group of an arrangement, and its data.

    Data alone decide on pairs.

    Args:
        arrangement, leaf, inputs, call: as in `ordered_mask`.
        sizes: (B, N, G, t, s).

    Returns:
        A `KernelMask`, and data (B, N G, t) and (B, N G, s).

    Raises:
        UnsupportedByKernel: if pairs have properties other than those of their query and their key.
    """
    _check_groups(arrangement, leaf, inputs)
    options, shown = inputs.options, [] if arrangement.is_exact else [leaf]
    evaluated = (*shown, *leaf.excluded)
    data: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    if call.causal:
        _add(data, "order", arrangement.causal_order())
    if options.hide_self or not all(_reads_only_groups(each) for each in evaluated):
        _add(data, "position", arrangement.pairs())
    for each in evaluated:
        selection = inputs.selections[each.index]
        if selection is not None:
            features = arrangement.features(selection if each is leaf else each.features(selection))
            for own, by_name in zip(data, features, strict=True):
                own.update({f"{each.index}.{name}": x for name, x in by_name.items()})
    _add(data, "segment", _segments_in_groups(arrangement, leaf, inputs))
    has_documents = call.starts is not None
    hides = options.hide_self == "always"
    function = PatternMask(_numbered(shown), _numbered(leaf.excluded), call.causal, hides, has_documents=has_documents)
    for side, own in enumerate(data):
        own.update({name: _flatten_groups(x, sizes, side) for name, x in own.items()})
    return _kernel_mask(function, (PatternMask().region((1 - sizes[3], sizes[4] - 1)),), inputs), data


def _kernel_mask(function, regions, inputs):
    """Return the mask of a function, regions and the options of a call."""
    fallback = SelfMask(function.lead) if inputs.options.hide_self == "unless_alone" else None
    return KernelMask(function, regions, fallback, soft_cap=inputs.options.soft_cap)


def _has_span(leaf, inputs):
    return inputs.options.span is not None and leaf.pattern.reach is not None


def _reads_only_groups(leaf):
    """Whether the rule of a leaf reads groups and ranks only; that of a subclass may read positions as well."""
    return type(leaf.pattern).visible is GroupBand.visible


def _numbered(leaves: Iterable[Leaf]) -> NumberedPatterns:
    return tuple((leaf.pattern, leaf.index) for leaf in leaves)


def _add(data, name, sides):
    """Add an array of queries and one of keys, if there are any."""
    for own, x in zip(data, sides or (), strict=False):
        own[name] = x


def _groups_in_order(arrangement, leaf, inputs):
    """Return the data of tokens sorted by group."""
    keys = mark_missing_keys(arrangement.groups)
    if inputs.masks.key_mask is not None and leaf.reads_successors:
        keys = ops.where(arrangement.to_kernel_order(inputs.masks.key_mask[:, None], -1), keys, 0)
    data: tuple[dict, dict] = ({}, {})
    _add(data, f"{leaf.index}.group", (arrangement.groups, keys))
    if leaf.excluded:
        positions = arrangement.to_kernel_order(ops.arange(arrangement.key_length, dtype="int32")[None, None], -1)
        _add(data, "position", (positions, positions))
    for each in leaf.excluded:
        if inputs.selections[each.index] is None:
            continue
        for own, features in zip(data, each.features(inputs.selections[each.index]), strict=True):
            own.update({f"{each.index}.{name}": arrangement.to_kernel_order(x, -1) for name, x in features.items()})
    return data


def _segments_in_order(arrangement, inputs):
    """Return the data of documents and padding, empty without either."""
    masks = inputs.masks
    if masks.query_segments is None and masks.key_mask is None:
        return {}, {}
    queries, keys = masks.query_segments, masks.key_segments
    if queries is None:
        queries, keys = (ops.zeros((shape(x)[0], shape(x)[2]), "int32") for x in (inputs.query, inputs.key))
    queries, keys = (_segment_ids(x) for x in (queries, keys))
    keys = keys if masks.key_mask is None else ops.where(masks.key_mask, keys, NO_SEGMENT)
    return tuple({"segment": arrangement.to_kernel_order(x[:, None], -1)} for x in (queries, keys))


def _segment_ids(x):
    """Return documents as int32, without `NO_SEGMENT`."""
    return ops.maximum(ops.cast(x, "int32"), NO_SEGMENT + 1)


def _segments_in_groups(arrangement, leaf, inputs):
    """Return the documents of queries (.., t, 1) and keys (.., 1, s), or None without documents and padding."""
    masks = leaf.token_masks(arrangement, inputs.masks)
    exists = arrangement.key_exists()
    if masks.key_mask is not None:
        exists = merge(exists, arrangement.keys(masks.key_mask[:, None], -1)[..., None, :])
    if masks.query_segments is None:
        zero = ops.zeros((1, 1), "int32")
        return None if exists is None else (zero, ops.where(exists, zero, NO_SEGMENT))
    queries = arrangement.queries(_segment_ids(masks.query_segments)[:, None], -1)[..., :, None]
    keys = arrangement.keys(_segment_ids(masks.key_segments)[:, None], -1)[..., None, :]
    return queries, keys if exists is None else ops.where(exists, keys, NO_SEGMENT)


def _flatten_groups(x, sizes, side):
    """Return data of queries (.., t, 1), side 0, or of keys (.., 1, s), as int32 (B, N G, t or s)."""
    batch, heads, groups, *lengths = sizes
    x = ops.broadcast_to(ops.squeeze(ops.cast(x, "int32"), -1 - side), (*sizes[:3], lengths[side]))
    return ops.reshape(x, (batch, heads * groups, lengths[side]))


def _check_groups(arrangement, leaf, inputs):
    """Raise `UnsupportedByKernel` unless each property of a pair is one of its query or of its key."""
    if _has_span(leaf, inputs):
        raise UnsupportedByKernel("an adaptive span, with keys that are not in the order of the sequence")
    if arrangement.lead:
        raise UnsupportedByKernel("successor values or segment memory, with keys gathered in groups")
    if arrangement.key_counts() is not None or arrangement.members is not None:
        raise UnsupportedByKernel("keys that count more than once")
    if arrangement.has_pair_mask:
        raise UnsupportedByKernel("blocks that each query selects from all keys")
    inside = arrangement.key_exists()
    if inside is not None and shape(inside)[-2] != 1:
        raise UnsupportedByKernel("which keys exist depends on the query, as in chunks of buckets")
