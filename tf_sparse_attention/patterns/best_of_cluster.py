"""Routing attention as published: each centroid selects its highest-scoring tokens."""

import dataclasses
from typing import cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_member_numbers, take_members
from tf_sparse_attention.ops.masks import causal_mask
from tf_sparse_attention.ops.members import (
    Members,
    best_members,
    hash_scores,
    membership,
    scatter_mean,
    strided_members,
)
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import argmax_last_axis, fold_groups, repeat_key_heads, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.nearest import CentroidPattern
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.selection import (
    CentroidGrouper,
    Grouper,
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
)
from tf_sparse_attention.types import Size, Tensor

MEMBER_SELECTIONS = ("top_k", "strided", "hash")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class BestOfCluster(CentroidPattern):
    """Attention within clusters, each of which holds its highest-scoring tokens of the whole sequence.

    The output of a token is the mean over its clusters, each with a separate softmax; zeros if it has none. Not causal
    (Roy et al. 2021, section 4.1, as published). The selection is a `MemberSelection`.

    Args:
        num_clusters: K.
        cluster_size: w, members per cluster.
        ema_decay: as in `Nearest`. Default 0.999.
        commitment_loss: as in `Nearest`. Default 1e-4.
        revive_after: as in `Nearest`. Default 100.
        members: "top_k", "strided" or "hash", see `RoutingAttention`. "hash" has no centroids. Default "top_k".
        causal_by_rank: whether a causal call masks keys by their rank in the cluster, as published, instead of their
            position. Default False.
        extra_count: added to the number of clusters of a token in the mean, 0.01 in the published code. Default 0.

    Raises:
        ValueError: if an argument is invalid, or for "hash" if `num_clusters` is not a power of two.
    """

    members: str = "top_k"
    causal_by_rank: bool = False
    extra_count: float = 0.0

    causal_selection = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_choice("members", self.members, MEMBER_SELECTIONS)
        if self.members == "hash" and (self.num_clusters < 2 or self.num_clusters & (self.num_clusters - 1)):
            raise ValueError(
                "`num_clusters` must be a power of two, at least 2, with hash buckets. "
                f"Received: num_clusters={self.num_clusters}."
            )

    def make_selector(self, weights: SelectorWeights) -> Selector:
        if self.members == "hash":
            planes = HashPlanes(weights.directions(self.num_clusters.bit_length() - 1))
            return MemberSelector(planes, self, weights.num_heads, weights.normalizes)
        return MemberSelector(self.make_centroids(weights), self, weights.num_heads, weights.normalizes)

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


@dataclasses.dataclass(frozen=True)
class HashPlanes:
    """Scores of hash buckets, see `ops.members.hash_scores`.

    Args:
        planes: normals of the planes, a variable (n, H, R).
    """

    planes: keras.Variable

    def scores(self, heads: Tensor) -> Tensor:
        """Return one-hot scores (B, n, T, 2^R) of normalized tokens (B, n, T, H)."""
        return hash_scores(heads, ops.transpose(ops.convert_to_tensor(self.planes), (0, 2, 1)))


class MemberSelector(GroupSelector):
    """Selects the members of each cluster from the whole sequence.

    Args:
        scorer: object with a method `scores(heads)`. If it has a method `learn`, it learns from the tokens of each
            cluster in training.
        pattern: the `BestOfCluster`.
        num_heads: heads of keys.
        normalizes: as in `GroupSelector`. Default False.
    """

    def __init__(
        self, scorer: CentroidGrouper | HashPlanes, pattern: BestOfCluster, num_heads: int, normalizes: bool = False
    ) -> None:
        super().__init__(cast(Grouper, scorer), pattern.num_clusters, num_heads, normalizes)
        self._scorer, self._cluster_size = scorer, pattern.cluster_size
        self._choose = strided_members if pattern.members == "strided" else best_members

    def select(self, inputs: SelectionInputs) -> Selection:
        sides = [(self.normalize_heads(heads), mask) for heads, mask in inputs.sides()]
        scores = [self._scores(heads) for heads, _ in sides]
        members = [self._choose(own, self._cluster_size, mask) for own, (_, mask) in zip(scores, sides, strict=True)]
        if inputs.training:
            self.train(sides, [argmax_last_axis(own) for own in scores])
        return MemberSelection((members[0], members[-1]))

    def _scores(self, heads):
        """Compute the scores (B, N, T, K) of queries or keys (B, N, T, H) for the clusters of their key head."""
        scores = self._scorer.scores(fold_groups(heads, self.num_heads))
        return ops.reshape(scores, (*shape(heads)[:3], shape(scores)[-1]))


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
