"""Masks of the pairs of an arrangement: the mask rule of the pattern, causality, and the masks of the call."""

from collections.abc import Callable

from tf_sparse_attention.ops.masks import TokenMasks, merge, negate, take_mask_pairs
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.engine.head_plans import Leaf
from tf_sparse_attention.patterns.engine.inputs import Inputs
from tf_sparse_attention.patterns.pattern import Call, Pattern, rule_conditions
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Tensor


def visible_pairs(arrangement: Arrangement, leaf: Leaf, inputs: Inputs, call: Call) -> Tensor | None:
    """Return the mask of all pairs of slots, bool broadcastable to (B, N, G, t, s). None: all pairs attend."""
    masks = token_masks(arrangement, leaf, inputs.masks)
    conditions: list[Tensor | None] = []
    if not arrangement.is_exact:
        conditions += arranged_conditions(arrangement, leaf.pattern, inputs.selections[leaf.index], call)
    for other in leaf.excluded:
        selection = inputs.selections[other.index]
        features = None if selection is None else other.features(selection)
        conditions.append(negate(merge(*arranged_conditions(arrangement, other.pattern, features, call))))
    if call.causal:
        conditions.append(arrangement.past())
    if inputs.options.hide_self == "always":
        conditions.append(negate(arrangement.own_key()))
    conditions.append(arrangement.inside())
    conditions += _token_masks(arrangement, masks)
    if masks.attention_mask is not None:
        positions = arrangement.query_positions(), arrangement.key_positions()
        conditions.append(take_mask_pairs(masks.attention_mask, *positions))
    return merge(*conditions)


def token_masks(arrangement: Arrangement, leaf: Leaf, masks: TokenMasks) -> TokenMasks:
    """Return the masks of a call without those that an arrangement already applies."""
    if not arrangement.keeps_token_masks:
        return masks
    # Keys without a successor are still masked.
    return masks._replace(key_mask=masks.key_mask if leaf.reads_successors else None, query_segments=None)


def arranged_conditions(
    arrangement: Arrangement, pattern: Pattern, selection: Selection | TokenFeatures | None, call: Call
) -> tuple[Tensor, ...]:
    """Evaluate the mask rule of a pattern for the pairs of an arrangement, see `rule_conditions`."""
    positions = arrangement.rule_positions(pattern.period)
    features = TokenFeatures({}, {}) if selection is None else arrangement.features(selection)
    starts: list[Callable[[], Tensor] | None] = [None, None]
    if call.starts is not None:
        begins = call.starts
        starts = [
            lambda: arrangement.queries(begins()[0], -1)[..., :, None],
            lambda: arrangement.keys(begins()[1], -1)[..., None, :],
        ]
    return rule_conditions(pattern, *(TokenInfo(*token) for token in zip(positions, features, starts, strict=True)))


def _token_masks(arrangement, masks):
    """Return the masks of padding and documents."""
    conditions = []
    if masks.key_mask is not None:
        conditions.append(arrangement.keys(masks.key_mask[:, None], -1)[..., None, :])
    if masks.query_segments is not None:
        own = arrangement.queries(masks.query_segments[:, None], -1)[..., :, None]
        conditions.append(own == arrangement.keys(masks.key_segments[:, None], -1)[..., None, :])
    return conditions
