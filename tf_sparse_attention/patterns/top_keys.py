"""Clusters that choose their keys of the whole sequence, for queries that do not depend on each other."""

import dataclasses
import functools
import operator

import keras

from tf_sparse_attention.ops.arrangement import Numbers
from tf_sparse_attention.ops.member_blocks import MemberBlocks
from tf_sparse_attention.ops.members import (
    Members,
    best_members,
    cluster_sets,
    membership,
    own_cluster_sets,
    set_names,
)
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.cross_caches import ChosenRows
from tf_sparse_attention.patterns.groups import CentroidPattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


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

    chooses_keys = True
    can_be_causal = False

    def choose_keys(self, scores: Tensor, key_mask: Tensor | None) -> Members:
        return best_members(scores, self.cluster_size, key_mask)

    def visible(self, query: Place, key: Place) -> Tensor:
        common = (query.known[name] & key.known[name] for name in set_names(self.num_clusters))
        return functools.reduce(operator.or_, common) != 0  # some cluster has both

    def arrange(self, call: Call, known: Known = None) -> MemberBlocks:
        return MemberBlocks(known)

    def describe(self, known: Known) -> Numbers:
        clusters, members, key_length = known
        return own_cluster_sets(clusters, self.num_clusters), cluster_sets(membership(members, key_length))

    def cross_cache(self) -> ChosenRows:
        return ChosenRows(self.num_clusters)

    def cache_unsupported_reason(self) -> str | None:
        return "clusters choose their keys of the whole sequence"
