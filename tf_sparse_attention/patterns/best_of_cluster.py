"""Routing attention as published: each centroid takes its highest-scoring tokens."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from keras import ops

from tf_sparse_attention.ops.gather import take_member_numbers, take_members
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.masks import causal_mask
from tf_sparse_attention.ops.members import Members, membership, scatter_mean
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import best_group, shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.group_band import GroupSelector, train_grouper
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Grouper, Selection, SelectionInputs, TokenFeatures
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class BestOfCluster(Pattern):
    """The other members of the query's clusters, of which each holds its best tokens of the whole sequence.

    A token gets the mean over the clusters that hold it, zeros if none does: several softmaxes, and never causal
    (Roy et al. 2021, section 4.1, as published). The selection is a `MemberSelection`.

    Args:
        num_clusters: K.
        cluster_size: w, members of a cluster.
        hide_by_rank: in a causal call, whether a key is later where its rank in the cluster is, as published.
        extra_count: added to the number of clusters that hold a token: 0.01 in the published code.
    """

    num_clusters: int
    cluster_size: int
    hide_by_rank: bool = False
    extra_count: float = 0.0

    content_based = True
    causal_selection = False

    @property
    def reach(self) -> int:
        return self.cluster_size - 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        queries, keys = cast(MemberSelection, selection).members
        return MemberGrid(queries, keys, (call.query_length, call.key_length), self.hide_by_rank, self.extra_count)

    def dense(self, call: Call, selection: Selection | TokenFeatures | None = None) -> Tensor:
        queries, keys = cast(MemberSelection, selection).members
        return cluster_masks(queries, keys, call.query_length, call.key_length, call.causal, self.hide_by_rank)

    def cache(self) -> CachePolicy:
        raise NotImplementedError("which tokens a cluster holds depends on later ones")


@dataclasses.dataclass(frozen=True)
class MemberSelection(Selection):
    """The tokens that each cluster holds.

    Args:
        members: pair of the `Members` of the queries and of the keys.
    """

    members: tuple[Members, Members]


class MemberSelector(GroupSelector):
    """Selects the highest-scoring tokens of the whole sequence for each cluster.

    Args:
        score: function of heads (B, N, T, H) to scores (B, N, T, K).
        choose: function of scores, `cluster_size` and a mask (B, T) or None to `Members`.
        cluster_size: w, members of a cluster.
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

    def select(self, inputs: SelectionInputs) -> Any:
        sides = inputs.sides()
        scores = [self._score(heads) for heads, _ in sides]
        members = [self._choose(own, self._cluster_size, mask) for own, (_, mask) in zip(scores, sides, strict=True)]
        if inputs.training and self.grouper is not None:
            train_grouper(self.grouper, sides, [best_group(own) for own in scores], self.num_heads)
        return MemberSelection((members[0], members[-1]))


class MemberGrid(Arrangement):
    """The members of each cluster side by side; a token gets the mean over the clusters that hold it.

    Args:
        queries: `Members` of the clusters among the queries.
        keys: `Members` among the keys.
        lengths: pair (T, S), integers or scalar tensors.
        hide_by_rank: whether a key is later than a query where its rank in the cluster is larger, as published, and not
            where its position is; the same where queries and keys are shared.
        extra_count: as in `scatter_mean`.
    """

    is_exact = True

    def __init__(
        self, queries: Members, keys: Members, lengths: tuple[Size, Size], hide_by_rank: bool, extra_count: float = 0.0
    ) -> None:
        self._members = queries, keys
        self._num_queries, self.key_length = lengths
        self._hide_by_rank = hide_by_rank
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
        return self._for_queries(taken) if axis == -1 else taken

    def _for_queries(self, x):
        return repeat_key_heads(x, self._members[0].positions.shape[1])

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return scatter_mean(x, self._members[0], self._num_queries, self._extra_count)

    def query_positions(self) -> Tensor:
        return self._members[0].positions

    def key_positions(self) -> Tensor:
        return self._for_queries(self._members[1].positions)

    def inside(self) -> Tensor | None:
        valid = self._members[1].valid
        return None if valid is None else self._for_queries(valid)[..., None, :]

    def order(self) -> tuple[Tensor, Tensor]:
        return self._ranks() if self._hide_by_rank else self.pairs()

    def distances(self) -> Distances:
        queries, keys = self._ranks()
        return Distances(keys - queries, tokens=self.apart())

    def _ranks(self):
        queries, keys = (np.arange(x.positions.shape[-1], dtype="int32") for x in self._members)
        return queries[:, None], keys[None, :]


def cluster_masks(
    queries: Members, keys: Members, query_length: Size, key_length: Size, causal: bool, hide_by_rank: bool
) -> Tensor:
    """Returns what each cluster lets a query see, the dense twin: bool (B, N, K, T, S).

    Args:
        queries: `Members` of the clusters among the queries.
        keys: `Members` among the keys.
        query_length: T.
        key_length: S.
        causal: whether later keys are hidden.
        hide_by_rank: as in `MemberGrid`.
    """
    own = membership(queries, query_length)[..., :, None]  # (B, N, K, T, 1)
    other = repeat_key_heads(membership(keys, key_length), own.shape[1])[..., None, :]
    mask = ops.logical_and(own, other)
    if causal and hide_by_rank:
        rank = [ops.cumsum(ops.cast(x, "int32"), axis=axis) for x, axis in ((own, -2), (other, -1))]
        return ops.logical_and(mask, rank[1] <= rank[0])
    return ops.logical_and(mask, causal_mask(query_length, key_length)) if causal else mask
