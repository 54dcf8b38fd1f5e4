"""Groupers, which assign tokens to groups where content decides, and the groups as patterns take them.

A grouper with weights is a Keras layer, see `Centroids`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.grouped_heads import fold_groups, unfold_groups
from tf_sparse_attention.ops.groups import groups_of, segment_ranks
from tf_sparse_attention.ops.hashing import lsh_buckets
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.ops.random_bits import random_groups
from tf_sparse_attention.patterns.engine.plan import plan_heads, take_heads
from tf_sparse_attention.patterns.pattern import Known, Pattern
from tf_sparse_attention.patterns.top_keys import ChosenKeys
from tf_sparse_attention.types import Tensor


class Grouper(Protocol):
    """What assigns tokens to groups; it may also have `learn`, and `scores` where groups choose keys: `Centroids`."""

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Returns the group of each token, int32 (B or 1, n, T) of heads (B, n, T, H) at positions (B or 1, T)."""


@dataclasses.dataclass(frozen=True)
class RandomGroups:
    """Groups that depend on the position alone.

    Args:
        num_groups: K.
        seed: integer.
    """

    num_groups: int
    seed: int

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Returns the group of each token."""
        batch, num_heads, length, _ = shape(heads)
        groups = random_groups(positions, num_heads, self.num_groups, self.seed)
        return ops.broadcast_to(groups, (batch, num_heads, length))


@dataclasses.dataclass(frozen=True)
class HashAxes:
    """The hash bucket of each token in one round: the axis or its opposite that it is nearest to.

    Args:
        axes: variable (n, H, K / 2), or with an axis of rounds before.
        round: number of the round, or None where there is no such axis.
    """

    axes: keras.Variable
    round: int | None = None

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Returns the bucket of each token."""
        axes = ops.convert_to_tensor(self.axes)
        axes = axes[None] if self.round is None else axes[self.round : self.round + 1]
        return lsh_buckets(heads, axes)[0]


def describe_tokens(
    layer: keras.layers.Layer,
    pattern: Pattern,
    query: Tensor,
    key: Tensor | None,
    masks: TokenMasks,
    training: bool,
) -> list[Known] | None:
    """Returns what the leaves of a pattern know of the tokens of a call, the `known` of `attend_pattern`.

    Args:
        layer: an `AttentionLayer`; its groupers learn in training.
        pattern: of the call.
        query: float (B, N, T, H).
        key: float (B, M, S, H), or None where queries serve as keys.
        masks: a `TokenMasks`.
        training: boolean.

    Raises:
        ValueError: for documents in one row where groups choose their keys of the whole row.
    """
    if not pattern.by_content:
        return None
    if masks.query_segments is not None and any(leaf.chooses_keys for leaf in pattern.leaves()):
        # A document would get what is left of keys that were chosen among all of them, for many queries nothing.
        raise ValueError(
            "`segment_ids` must be None with selection='top_keys' and TopKeys, whose clusters choose their keys of the "
            "whole row: give each document a row of its own, or take selection='nearest' and Nearest. "
            "Received: segment_ids."
        )
    known: list[Known] = [None] * len(pattern.leaves())
    ranks = _documents_of_sides(masks)
    tokens, token_masks = zip(*sides_of(query, key, masks), strict=True)
    for plan, leaf, grouper, *own in leaves_with_groupers(layer, pattern, *tokens):
        count = len(plan.key_heads)
        groups = [assign_groups(grouper, x, ops.arange(shape(x)[2], dtype="int32")[None], count) for x in own]
        if training:
            train_grouper(layer, grouper, list(zip(own, token_masks, groups, strict=True)), count)
        if leaf.pattern.chooses_keys:
            members = leaf.pattern.choose_keys(grouper.scores(own[-1]), token_masks[-1])
            known[leaf.index] = ChosenKeys(groups[0], members, shape(own[-1])[2])
            continue
        described = [
            {"group": groups_of(x, leaf.pattern.num_groups, mask, rank)}
            for x, mask, rank in zip(groups, token_masks, ranks, strict=False)
        ]
        known[leaf.index] = described[0], described[-1]
    return known


def sides_of(query: Tensor, key: Tensor | None, masks: TokenMasks) -> list[tuple[Tensor, Tensor | None]]:
    """Returns the tokens (B, N, T, H) that are grouped, each with the mask (B, T) of those that there are, or None.

    Args:
        query: queries; where they serve as keys, what hides a key hides the token.
        key: keys, or None where queries serve as keys.
        masks: the `TokenMasks` of the call.
    """
    return [(query, masks.key_mask)] if key is None else [(query, masks.query_mask), (key, masks.key_mask)]


def _documents_of_sides(masks):
    """Returns the `segment_ranks` of queries and of keys, None twice without documents."""
    queries, keys = masks.query_segments, masks.key_segments
    if queries is None:
        return None, None
    return segment_ranks(queries) * 2 if keys is queries else segment_ranks(queries, keys)


def train_grouper(
    layer: keras.layers.Layer,
    grouper: Grouper,
    sides: Sequence[tuple[Tensor, Tensor | None, Tensor]],
    num_key_heads: int,
) -> None:
    """Lets a grouper of a trainable layer `learn`, if it does, and adds its loss to that of the layer.

    Args:
        layer: an `AttentionLayer`.
        grouper: of `num_key_heads` heads.
        sides: list of tokens (B, n, T, H), their mask (B, T) or None, and their groups (B, n, T).
        num_key_heads: m, by which n is a multiple of it where heads share keys: all of a group count alike.
    """
    if not layer.trainable or not hasattr(grouper, "learn"):
        return
    loss = grouper.learn([_of_key_heads(*side, num_key_heads) for side in sides])
    if loss is not None:
        layer.add_loss(loss)


def assign_groups(grouper: Grouper, heads: Tensor, positions: Tensor, num_key_heads: int) -> Tensor:
    """Returns the groups that a grouper of `num_key_heads` assigns tokens of as many heads, or of some for each.

    Args:
        grouper: a `Grouper`.
        heads: float (B, n, T, H).
        positions: int32 (B or 1, T).
        num_key_heads: m, which divides n.

    Returns:
        Int32 (B or 1, n, T).
    """
    count = heads.shape[1]
    if count == num_key_heads:
        return grouper.assign(heads, positions)
    positions = ops.tile(positions, (1, count // num_key_heads))
    return unfold_groups(grouper.assign(fold_groups(heads, num_key_heads), positions), count)


def _of_key_heads(heads, mask, groups, num_key_heads):
    """Returns tokens, their mask and their groups with those of the heads that share keys as rows of one head."""
    size = heads.shape[1] // num_key_heads
    if size == 1:
        return heads, mask, groups
    mask = None if mask is None else ops.tile(mask, (1, size))
    groups = fold_groups(groups[..., None], num_key_heads)[..., 0]
    return fold_groups(heads, num_key_heads), mask, groups


def groups_of_leaves(
    layer: keras.layers.Layer, pattern: Pattern, heads: Tensor, positions: Tensor
) -> list[Tensor | None]:
    """Returns the groups of the tokens of one document for each leaf of a pattern, as decoding takes them.

    Args:
        layer: an `AttentionLayer`.
        pattern: that of causal calls.
        heads: float (B, N, T, H), queries or keys.
        positions: int32 (B or 1, T).
    """
    groups: list[Tensor | None] = [None] * len(pattern.leaves())
    for plan, leaf, grouper, own in leaves_with_groupers(layer, pattern, heads):
        groups[leaf.index] = assign_groups(grouper, own, positions, len(plan.key_heads))
    return groups


def groups_of_sequence(
    layer: keras.layers.Layer, pattern: Pattern, key: Tensor, mask: Tensor | None
) -> list[Tensor | Members | None]:
    """Returns the groups of the keys of a whole sequence for each leaf, the `Members` where groups choose their keys.

    Args:
        layer: an `AttentionLayer`.
        pattern: of the call.
        key: float (B, M, S, H).
        mask: bool (B, S), False for keys that are not there; or None.
    """
    groups: list[Any] = groups_of_leaves(layer, pattern, key, ops.arange(shape(key)[2], dtype="int32")[None])
    for _, leaf, grouper, own in leaves_with_groupers(layer, pattern, key):
        if leaf.pattern.chooses_keys:
            groups[leaf.index] = leaf.pattern.choose_keys(grouper.scores(own), mask)
    return groups


def leaves_with_groupers(layer: keras.layers.Layer, pattern: Pattern, *tokens: Tensor) -> Iterator[tuple[Any, ...]]:
    """Iterates over the leaves of a pattern that go by content.

    Args:
        layer: an `AttentionLayer`.
        pattern: of a call.
        *tokens: float (B, N, T, H) or (B, M, S, H), queries, and keys where they are others.

    Yields:
        The `HeadPlan`, the `Leaf`, its grouper, and its heads of each of `tokens`, as the grouper sees them.
    """
    for plan in plan_heads(pattern, layer.num_pattern_heads, layer.num_key_heads) if pattern.by_content else ():
        leaves = [leaf for leaf in plan.leaves if leaf.pattern.by_content]
        numbers = [plan.heads if x.shape[1] == layer.num_pattern_heads else plan.key_heads for x in tokens]
        own = [layer.group_inputs(take_heads(*x)) for x in zip(tokens, numbers, strict=True)] if leaves else []
        for leaf in leaves:
            yield plan, leaf, layer.groupers[leaf.index], *own
