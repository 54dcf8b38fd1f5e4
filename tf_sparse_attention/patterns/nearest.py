"""Clusters of tokens: each with those of its nearest centroid, or each centroid with its best tokens."""

import dataclasses

import keras

from tf_sparse_attention.ops.members import MemberGrid, cluster_masks
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.groups import CentroidPattern, GroupBand
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Nearest(CentroidPattern, GroupBand):
    """The last `cluster_size` keys of the query's own cluster; a token is in that of its nearest centroid.

    Causal by construction: which keys are seen depends on no later token. Centroids are found by online k-means of
    LN(q) and LN(k). Source: Roy et al. 2021, whose own selection is `BestOfCluster`.

    Args:
        num_clusters: K, centroids of each head.
        cluster_size: w, keys of its cluster that a query sees on a side, counting itself.
        ema_decay: weight of the past in the moving averages that centroids are, in [0, 1). Default 0.999.
        commitment_loss: factor of mean((x - centroid)^2) in the loss of training. Default 1e-4; 0: none.
        revive_after: training steps without a token after which a centroid moves to the fullest one. Default 100; 0:
            never.

    Raises:
        ValueError: for a wrong argument.
    """

    @property
    def band(self) -> int:
        return self.cluster_size


@dataclasses.dataclass(frozen=True)
class BestOfCluster(Pattern):
    """The other members of the query's clusters, of which each holds its best tokens of the whole sequence.

    A token gets the mean over the clusters that hold it, zeros if none does: several softmaxes, and never causal
    (Roy et al. 2021, section 4.1, as published). What is known of the tokens is a pair of `ops.members.Members`.

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

    by_content = True
    can_join = False
    causal_selection = False

    @property
    def reach(self) -> int:
        return self.cluster_size - 1

    def arrange(self, call: Call, known: Known = None) -> MemberGrid:
        queries, keys = known
        return MemberGrid(queries, keys, (call.query_length, call.key_length), self.hide_by_rank, self.extra_count)

    def dense(self, call: Call, known: Known = None) -> Tensor:
        queries, keys = known
        return cluster_masks(queries, keys, call.query_length, call.key_length, call.causal, self.hide_by_rank)

    def cache_unsupported_reason(self) -> str | None:
        return "which tokens a cluster holds depends on later ones"
