"""Cluster retrieval: each centroid selects its highest-scoring keys of the whole sequence."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import cast

import keras
from keras import ops

from tf_sparse_attention.ops.clustered_attention import ClusterBlocks
from tf_sparse_attention.ops.gather import take_blocks, take_member_numbers, take_members, take_numbers
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.members import (
    Members,
    best_members,
    cluster_sets,
    membership,
    set_names,
    single_cluster_sets,
)
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.arrangement import Arrangement
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, ReadKeys
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.nearest import CentroidPattern
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.selection import (
    CentroidGrouper,
    SelectedKeys,
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class TopKeys(CentroidPattern):
    """The `cluster_size` keys of the whole sequence that score highest for the query's cluster. O(T w + S K).

    A query belongs to its nearest centroid, argmax_c LN(q) . mu_c, and attends to the keys with the largest
    LN(k) . mu_c. Among equal scores, the earlier key wins. The keys of a query do not depend on other queries. Suited
    to non-causal attention and to cross-attention, with or without a cache. The key sequence may have any length. A key
    may belong to several clusters or to none.

    Calls with `segment_ids` raise an error: the keys of a cluster are selected from the whole row, not per document.

    Source: clusters as in Roy et al. 2021. In that paper, each cluster also selects its queries, and the output of a
    query is the mean over its clusters. `RoutingAttention(selection="top_k")` implements this. One cluster per query is
    specific to this library.

    Args:
        num_clusters: K, centroids per head.
        cluster_size: w, keys per cluster; all keys if there are fewer.
        ema_decay: as in `Nearest`. Default 0.999.
        commitment_loss: as in `Nearest`. Default 1e-4.
        revive_after: as in `Nearest`. Default 100.

    Raises:
        ValueError: if an argument is invalid.

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
        return functools.reduce(operator.or_, common) != 0

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return MemberBlocks(cast(KeySelection, selection))

    def cross_cache(self) -> CrossCachePolicy:
        return ClusterKeys(self.num_clusters)

    def cache(self) -> CachePolicy:
        raise NotImplementedError("clusters select keys from the whole sequence")


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
        return TokenFeatures(single_cluster_sets(self.clusters, num_clusters), of_keys)


class KeySelector(GroupSelector):
    """Selects the cluster of each query and the highest-scoring keys of each cluster.

    The centroids are a `Grouper` with a method `scores`.
    """

    def __init__(self, centroids: CentroidGrouper, pattern: TopKeys, num_heads: int, normalizes: bool = False) -> None:
        super().__init__(centroids, pattern.num_clusters, num_heads, normalizes)
        self._centroids, self._cluster_size = centroids, pattern.cluster_size

    def select(self, inputs: SelectionInputs) -> Selection:
        if inputs.masks.query_segments is not None:
            # Keys are selected from all documents of the row, so most queries would have no key of their document.
            raise ValueError(
                "`segment_ids` must be None with selection='top_keys' and TopKeys, whose clusters select keys from the "
                "whole row. Received: segment_ids. Use one row per document, or selection='nearest' and Nearest."
            )
        sides, groups = self.group_tokens(inputs)
        return KeySelection(groups[0], self._members(*sides[-1]), shape(inputs.key)[2])

    def select_keys(self, key: Tensor, mask: Tensor | None) -> Members:
        return self._members(self.normalize_heads(key), mask)

    def _members(self, key, mask):
        return best_members(self._centroids.scores(key), self._cluster_size, mask)


class MemberBlocks(Arrangement):
    """Queries sorted by cluster, in blocks of one cluster, with the keys of that cluster. O(T w + K w)."""

    is_exact = True
    sorts_tokens = True

    def __init__(self, selection: KeySelection) -> None:
        self._members, self.key_length = selection.members, selection.key_length
        self._blocks = ClusterBlocks.from_clusters(selection.clusters, shape(selection.members.positions)[2])

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.arrange(x)
        return self._in_blocks(take_numbers(_with_heads(x, self._blocks.tokens), self._blocks.tokens))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.gather_clusters(take_members(x, self._members.positions))
        positions = self._members.positions
        return self._blocks.gather_clusters(take_member_numbers(_with_heads(x, positions), positions))

    def _in_blocks(self, x):
        return ops.reshape(x, (*shape(self._blocks.cluster_of_block), -1))

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._blocks.restore(x)

    def query_positions(self) -> Tensor:
        return self._in_blocks(self._blocks.tokens)

    def key_positions(self) -> Tensor:
        return self._blocks.gather_clusters(self._members.positions)

    def key_exists(self) -> Tensor | None:
        valid = self._members.valid
        return None if valid is None else self._blocks.gather_clusters(valid)[..., None, :]

    def distances(self) -> Distances:
        tokens = self.relative_positions()
        past = merge(tokens <= 0, self.key_exists())
        last = ops.sum(ops.cast(past, "int32"), axis=-1, keepdims=True) - 1  # rank of the last key up to the query
        ranks = ops.arange(shape(tokens)[-1], dtype="int32") - last
        return Distances(ranks=ranks, tokens=tokens, pairs=self.pairs)


def _with_heads(x, tokens):
    """Broadcast numbers (B or 1, N or 1, T) to the heads of `tokens`, (B, N, T)."""
    return ops.broadcast_to(x, (*shape(tokens)[:2], shape(x)[-1]))


@dataclasses.dataclass(frozen=True)
class ClusterKeys(CrossCachePolicy):
    """The selected keys of the query's cluster.

    Keys are stored by cluster: "key" (B, n, K, w, H), "value", "position" (B, n, K, w), and "mask" (B, n, K, w) if some
    clusters have fewer than w keys. "clusters_0", ... are the clusters of each key, see `cluster_sets`.
    """

    num_groups: int

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # a property here
        return set_names(self.num_groups)

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: SelectedKeys | None) -> dict[str, Tensor]:
        positions, valid = members = cast(Members, groups)
        entry = {"key": take_members(key, positions), "value": take_members(value, positions), "position": positions}
        entry |= cluster_sets(membership(members, shape(key)[2]))
        return entry if valid is None else {**entry, "mask": valid}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, positions: Tensor) -> dict[str, Tensor]:
        past = take_blocks(entry["position"], group) <= positions[:, None, :, None]
        if "mask" in entry:
            past = ops.logical_and(past, take_blocks(entry["mask"], group))
        last = ops.sum(ops.cast(past, "int32"), axis=-1) - 1
        return {"rank": last, "group": group, **single_cluster_sets(group, self.num_groups)}

    def read(self, entry: Mapping[str, Tensor], query: TokenInfo) -> ReadKeys:
        found = {name: take_blocks(x, query.group) for name, x in entry.items() if name not in self.names}
        ranks = ops.arange(shape(found["position"])[-1], dtype="int32")[None, None, None]
        exists = found.get("mask", ops.ones((1, 1, 1, 1), "bool"))
        return ReadKeys(found["key"], found["value"], found["position"], exists, {"rank": ranks})
