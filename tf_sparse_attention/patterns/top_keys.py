"""Cluster retrieval: each centroid takes its highest-scoring keys of the whole sequence."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any, cast

import keras
from keras import ops

from tf_sparse_attention.ops.clustered_attention import ClusterBlocks
from tf_sparse_attention.ops.gather import (
    take_blocks,
    take_member_numbers,
    take_members,
    take_numbers,
)
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.members import (
    Members,
    best_members,
    cluster_sets,
    membership,
    own_cluster_sets,
    set_names,
)
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, ReadKeys
from tf_sparse_attention.patterns.group_band import GroupSelector, assign_groups, positions_of_tokens, train_grouper
from tf_sparse_attention.patterns.nearest import CentroidPattern
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.selection import Selection, SelectionInputs, Selector, SelectorWeights, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class TopKeys(CentroidPattern):
    """The `cluster_size` best keys of the query's cluster, of all keys of the sequence; O(T w + S K).

    A query belongs to its nearest centroid, argmax_c LN(q) . mu_c, and sees the keys of largest LN(k) . mu_c, of equal
    ones the earlier, of fewer than w all. Which keys a query sees depends on no other query: for cross-attention, with
    a cache too, and where nothing is causal. The other sequence may have any length. A key may be of several clusters,
    or of none.

    A layer with it takes no `segment_ids`: the best keys of a packed row are not those of each of its documents.

    Source: clusters as in Roy et al. 2021, who choose queries so too (`BestOfCluster`) and average over the clusters
    that hold one; one cluster for each query is this library's.

    Args:
        num_clusters: K, centroids of each head.
        cluster_size: w, keys of a cluster.
        ema_decay: as in `Nearest`, likewise the next two.
        commitment_loss: factor of the commitment loss. Default 1e-4; 0: none.
        revive_after: training steps without a token after which a centroid moves. Default 100; 0: never.

    Raises:
        ValueError: for a wrong argument.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=TopKeys(2, 3), seed=0)
        >>> query, value = keras.random.normal((1, 5, 16)), keras.random.normal((1, 9, 16))
        >>> ops.sum(ops.cast(layer.attention_pattern(query, value), "int32"), axis=-1)[0, 0].numpy().tolist()
        [3, 3, 3, 3, 3]
    """

    can_be_causal = False

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return KeySelector(self.make_centroids(weights), self, weights.num_heads, weights.normalizes)

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        common = (query.features[name] & key.features[name] for name in set_names(self.num_clusters))
        return functools.reduce(operator.or_, common) != 0  # some cluster has both

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return MemberBlocks(cast(KeySelection, selection))

    def cross_cache(self) -> CrossCachePolicy:
        return ChosenRows(self.num_clusters)

    def cache(self) -> CachePolicy:
        raise NotImplementedError("clusters choose their keys of the whole sequence")


@dataclasses.dataclass(frozen=True)
class KeySelection(Selection):
    """The cluster of each query, and the highest-scoring keys of each cluster.

    Args:
        clusters: int32 (B, N, T), in 0 .. K - 1.
        members: the `Members` of the clusters, of S keys.
        key_length: S, an integer or a scalar tensor.
    """

    clusters: Tensor
    members: Members
    key_length: Size

    def features(self) -> TokenFeatures:
        """Return the clusters of each token as bits of integers, see `cluster_sets`."""
        num_clusters = shape(self.members.positions)[2]
        of_keys = cluster_sets(membership(self.members, self.key_length))
        return TokenFeatures(own_cluster_sets(self.clusters, num_clusters), of_keys)


class KeySelector(GroupSelector):
    """Selects the cluster of each query and the highest-scoring keys of each cluster.

    Args:
        centroids: a `Grouper` that also has `scores`.
        pattern: the `TopKeys`.
        num_heads: m, heads of keys.
        normalizes: as in `GroupSelector`. Default False.
    """

    def __init__(self, centroids: Any, pattern: TopKeys, num_heads: int, normalizes: bool = False) -> None:
        super().__init__(centroids, pattern.num_clusters, num_heads, normalizes)
        self._centroids, self._cluster_size = centroids, pattern.cluster_size

    def select(self, inputs: SelectionInputs) -> Any:
        if inputs.masks.query_segments is not None:
            # Keys are selected among all documents of the row, so most queries would have none of their document.
            raise ValueError(
                "`segment_ids` must be None with selection='top_keys' and TopKeys, whose clusters choose their keys of "
                "the whole row: give each document a row of its own, or take selection='nearest' and Nearest. "
                "Received: segment_ids."
            )
        sides = [(self.compared(heads), mask) for heads, mask in inputs.sides()]
        groups = [assign_groups(self.grouper, heads, positions_of_tokens(heads), self.num_heads) for heads, _ in sides]
        if inputs.training:
            train_grouper(self.grouper, sides, groups, self.num_heads)
        key, mask = sides[-1]
        return KeySelection(groups[0], self._members(key, mask), shape(key)[2])

    def select_keys(self, key: Tensor, mask: Tensor | None) -> Members:
        return self._members(self.compared(key), mask)

    def _members(self, key, mask):
        return best_members(self._centroids.scores(key), self._cluster_size, mask)


class MemberBlocks(Arrangement):
    """Queries sorted by cluster, in blocks of one cluster each, beside the members of that cluster: O(T w + K w).

    Args:
        selected: a `KeySelection`.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, selected: KeySelection) -> None:
        self._members, self.key_length = selected.members, selected.key_length
        self._blocks = ClusterBlocks.of(selected.clusters, shape(selected.members.positions)[2])

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.arrange(x)
        return self._in_blocks(take_numbers(_with_heads(x, self._blocks.tokens), self._blocks.tokens))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.of_clusters(take_members(x, self._members.positions))
        positions = self._members.positions
        return self._blocks.of_clusters(take_member_numbers(_with_heads(x, positions), positions))

    def _in_blocks(self, x):
        return ops.reshape(x, (*shape(self._blocks.cluster_of_block), -1))

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._blocks.restore(x)

    def query_positions(self) -> Tensor:
        return self._in_blocks(self._blocks.tokens)

    def key_positions(self) -> Tensor:
        return self._blocks.of_clusters(self._members.positions)

    def inside(self) -> Tensor | None:
        valid = self._members.valid
        return None if valid is None else self._blocks.of_clusters(valid)[..., None, :]

    def distances(self) -> Distances:
        apart, inside = self.apart(), self.inside()
        passed = merge(apart <= 0, inside)
        last = ops.sum(ops.cast(passed, "int32"), axis=-1, keepdims=True) - 1  # rank of the last key up to the query
        ranks = ops.arange(shape(apart)[-1], dtype="int32") - last
        return Distances(ranks=ranks, tokens=apart, pairs=self.pairs)


def _with_heads(x, tokens):
    """Returns numbers (B or 1, N or 1, T) for all heads of `tokens`, as (B, N, T)."""
    return ops.broadcast_to(x, (*shape(tokens)[:2], shape(x)[-1]))


@dataclasses.dataclass(frozen=True)
class ChosenRows(CrossCachePolicy):
    """The keys that the query's group chose.

    Those of each of K groups are kept side by side: "key" (B, n, K, w, H), "value" and "position" (B, n, K, w), and,
    if some have fewer than w, "mask" likewise. "clusters_0" .. are the groups of each key, see `cluster_sets`.
    """

    num_groups: int

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # computed, where others keep it
        return set_names(self.num_groups)

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: Any) -> dict[str, Tensor]:
        positions, valid = groups
        entry = {"key": take_members(key, positions), "value": take_members(value, positions), "position": positions}
        entry |= cluster_sets(membership(groups, shape(key)[2]))
        return entry if valid is None else {**entry, "mask": valid}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, index: Tensor) -> dict[str, Tensor]:
        own = own_cluster_sets(group, self.num_groups) | {"group": group}
        passed = _of_group(entry["position"], group) <= index[:, None, None]
        if "mask" in entry:
            passed = ops.logical_and(passed, _of_group(entry["mask"], group))
        last = ops.sum(ops.cast(passed, "int32"), axis=-1) - 1
        return {"rank": last, **{name: x[..., 0] for name, x in own.items()}}

    def read(self, entry: Mapping[str, Tensor], place: TokenInfo) -> ReadKeys:
        found = {name: _of_group(x, place.group[..., None]) for name, x in entry.items() if name not in self.names}
        ranks = ops.arange(shape(found["position"])[-1], dtype="int32")[None, None]
        exists = found.get("mask", ops.ones((1, 1, 1), "bool"))
        return ReadKeys(found["key"], found["value"], found["position"], exists, {"rank": ranks})


def _of_group(x: Tensor, group: Tensor | None) -> Tensor:
    """Returns the part of each head's group, (B, n, 1), of an array (B, n, K, ..): (B, n, ..)."""
    return take_blocks(x, group)[:, :, 0]
