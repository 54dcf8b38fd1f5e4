"""What puts tokens into groups where content decides, and what a pattern's leaves then know of the tokens.

A grouper has `assign(heads, positions)`, which returns the group of each token, int32 (B or 1, n, T) of heads
(B, n, T, H) at positions int32 (B or 1, T), and may have `learn`, see `Centroids`.
"""

import dataclasses
from typing import Any

from keras import ops

from tf_sparse_attention.ops import lsh
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.groups import groups_of, segment_ranks
from tf_sparse_attention.ops.random_groups import random_groups
from tf_sparse_attention.patterns.plan import plan_heads, take_heads


@dataclasses.dataclass(frozen=True)
class RandomGroups:
    """Groups that depend on the position alone.

    Args:
        num_groups: K.
        seed: integer.
    """

    num_groups: int
    seed: int

    def assign(self, heads, positions):
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

    axes: Any
    round: int | None = None

    def assign(self, heads, positions):
        """Returns the bucket of each token."""
        axes = ops.convert_to_tensor(self.axes)
        axes = axes[None] if self.round is None else axes[self.round : self.round + 1]
        return lsh.buckets(heads, axes)[0]


def describe_tokens(layer, pattern, query, key, masks, training):
    """Returns what the leaves of a pattern know of the tokens of a call, the `known` of `attend_pattern`.

    Args:
        layer: an `AttentionLayer`; its groupers learn in training.
        pattern: of the call.
        query: float (B, N, T, H).
        key: float (B, N, S, H), or None where queries serve as keys.
        masks: a `TokenMasks`.
        training: boolean.
    """
    known = [None] * len(pattern.leaves())
    if not pattern.by_content:
        return known
    groupers = layer.groupers
    rank = None if masks.query_segments is None else segment_ranks(masks.query_segments)[0]
    for plan in plan_heads(pattern, query.shape[1]):
        sides = [(take_heads(query, plan.heads), masks.key_mask if key is None else masks.query_mask)]
        if key is not None:
            sides.append((take_heads(key, plan.heads), masks.key_mask))
        for leaf in plan.leaves:
            grouper = groupers[leaf.index]
            if grouper is None:
                continue
            groups = [grouper.assign(x, ops.arange(shape(x)[2], dtype="int32")[None]) for x, _ in sides]
            if training and layer.trainable and hasattr(grouper, "learn"):
                loss = grouper.learn([(*side, own) for side, own in zip(sides, groups, strict=True)])
                if loss is not None:
                    layer.add_loss(loss)
            own = [
                {"group": groups_of(x, leaf.pattern.num_groups, mask, rank)}
                for x, (_, mask) in zip(groups, sides, strict=True)
            ]
            known[leaf.index] = own[0], own[-1]
    return known


def groups_of_leaves(layer, pattern, heads, positions):
    """Returns the groups of the tokens of one document for each leaf of a pattern, as decoding takes them.

    Args:
        layer: an `AttentionLayer`.
        pattern: that of causal calls.
        heads: float (B, N, T, H), queries or keys of `normalize_heads`.
        positions: int32 (B or 1, T).
    """
    groups = [None] * len(pattern.leaves())
    if pattern.by_content:
        for plan in plan_heads(pattern, heads.shape[1]):
            own = take_heads(heads, plan.heads)
            for leaf in plan.leaves:
                grouper = layer.groupers[leaf.index]
                groups[leaf.index] = None if grouper is None else grouper.assign(own, positions)
    return groups
