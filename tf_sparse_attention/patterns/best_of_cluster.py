"""Routing attention as published: each centroid selects its highest-scoring tokens."""

import dataclasses
from collections.abc import Callable
from typing import cast

import numpy as np
from keras import ops

from tf_sparse_attention.ops.gather import take_member_numbers, take_members
from tf_sparse_attention.ops.masks import causal_mask
from tf_sparse_attention.ops.members import Members, membership, scatter_mean
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import argmax_last_axis, repeat_key_heads, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Grouper, Selection, SelectionInputs
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class BestOfCluster(Pattern):
    """Attention within clusters, each of which holds its highest-scoring tokens of the whole sequence.

    The output of a token is the mean over its clusters, each with a separate softmax; zeros if it has none. Not causal
    (Roy et al. 2021, section 4.1, as published). The selection is a `MemberSelection`.

    Args:
        num_clusters: K.
        cluster_size: w, members per cluster.
        causal_by_rank: whether a causal call masks keys by their rank in the cluster, as published, instead of their
            position. Default False.
        extra_count: added to the number of clusters of a token in the mean, 0.01 in the published code. Default 0.
    """

    num_clusters: int
    cluster_size: int
    causal_by_rank: bool = False
    extra_count: float = 0.0

    content_based = True
    causal_selection = False

    @property
    def reach(self) -> int:
        return self.cluster_size - 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        lengths = call.query_length, call.key_length
        return MemberGrid(cast(MemberSelection, selection).members, lengths, self.causal_by_rank, self.extra_count)

    def dense(self, call: Call, selection: "MemberSelection") -> Tensor:
        """Compute the mask of each cluster, the dense reference: bool (B, N, K, T, S)."""
        queries = membership(selection.members[0], call.query_length)[..., :, None]  # (B, N, K, T, 1)
        keys = repeat_key_heads(membership(selection.members[1], call.key_length), queries.shape[1])[..., None, :]
        mask = ops.logical_and(queries, keys)
        if not call.causal:
            return mask
        if self.causal_by_rank:
            query_ranks = ops.cumsum(ops.cast(queries, "int32"), axis=-2)
            key_ranks = ops.cumsum(ops.cast(keys, "int32"), axis=-1)
            return ops.logical_and(mask, key_ranks <= query_ranks)
        return ops.logical_and(mask, causal_mask(call.query_length, call.key_length))

    def cache(self) -> CachePolicy:
        raise NotImplementedError("the members of a cluster depend on later tokens")


@dataclasses.dataclass(frozen=True)
class MemberSelection(Selection):
    """The `Members` of the clusters, a pair for queries and keys."""

    members: tuple[Members, Members]


class MemberSelector(GroupSelector):
    """Selects the members of each cluster from the whole sequence.

    Args:
        score: function of heads (B, N, T, H) to scores (B, N, T, K).
        choose: function of scores, `cluster_size` and a mask (B, T) or None to `Members`.
        cluster_size: w, members per cluster.
        grouper: the centroids, which learn from the tokens of each cluster; or None.
        num_heads: heads of keys.
    """

    def __init__(
        self,
        score: Callable[[Tensor], Tensor],
        choose: Callable[[Tensor, int, Tensor | None], Members],
        cluster_size: int,
        grouper: Grouper | None,
        num_heads: int,
    ) -> None:
        super().__init__(cast(Grouper, grouper), 0, num_heads)
        self._score, self._choose, self._cluster_size = score, choose, cluster_size

    def select(self, inputs: SelectionInputs) -> Selection:
        sides = inputs.sides()
        scores = [self._score(heads) for heads, _ in sides]
        members = [self._choose(own, self._cluster_size, mask) for own, (_, mask) in zip(scores, sides, strict=True)]
        if inputs.training and self.grouper is not None:
            self.train(sides, [argmax_last_axis(own) for own in scores])
        return MemberSelection((members[0], members[-1]))


class MemberGrid(Arrangement):
    """Groups of the members of each cluster, whose outputs are averaged per token.

    Args:
        members: pair of the `Members` of the queries and of the keys.
        lengths: pair (T, S).
        causal_by_rank: as in `BestOfCluster`. Both orders agree if queries are used as keys.
        extra_count: as in `scatter_mean`.
    """

    is_exact = True

    def __init__(
        self, members: tuple[Members, Members], lengths: tuple[Size, Size], causal_by_rank: bool, extra_count: float
    ) -> None:
        self._members = members
        self._num_queries, self.key_length = lengths
        self._causal_by_rank = causal_by_rank
        self._extra_count = extra_count

    def _take(self, x, axis, members):
        if axis == -2:
            return take_members(x, members.positions)
        batch, heads = shape(members.positions)[:2]
        return take_member_numbers(ops.broadcast_to(x, (batch, heads, shape(x)[-1])), members.positions)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._take(x, axis, self._members[0])

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        taken = self._take(x, axis, self._members[1])
        return self._repeat_heads(taken) if axis == -1 else taken

    def _repeat_heads(self, x):
        return repeat_key_heads(x, self._members[0].positions.shape[1])

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return scatter_mean(x, self._members[0], self._num_queries, self._extra_count)

    def query_positions(self) -> Tensor:
        return self._members[0].positions

    def key_positions(self) -> Tensor:
        return self._repeat_heads(self._members[1].positions)

    def key_exists(self) -> Tensor | None:
        valid = self._members[1].valid
        return None if valid is None else self._repeat_heads(valid)[..., None, :]

    def causal_order(self) -> tuple[Tensor, Tensor]:
        return self._ranks() if self._causal_by_rank else self.pairs()

    def distances(self) -> Distances:
        queries, keys = self._ranks()
        return Distances(keys - queries, tokens=self.relative_positions())

    def _ranks(self):
        queries, keys = (np.arange(x.positions.shape[-1], dtype="int32") for x in self._members)
        return queries[:, None], keys[None, :]
