"""Routing attention: the last keys of the query's cluster."""

import dataclasses

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.random_bits import random_groups
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.group_band import GroupBand, GroupSelector
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selection import CentroidGrouper, Selector, SelectorWeights
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class CentroidPattern(Pattern):
    """Base class of patterns with k-means centroids of LN(q) and LN(k). `Nearest` lists the arguments."""

    num_clusters: int
    cluster_size: int
    ema_decay: float = 0.999
    commitment_loss: float = 1e-4
    revive_after: int = 100

    content_based = True

    def __post_init__(self) -> None:
        checks.check_count("num_clusters", self.num_clusters)
        checks.check_count("cluster_size", self.cluster_size)
        checks.check_rate("ema_decay", self.ema_decay)
        checks.check_not_negative("commitment_loss", self.commitment_loss)
        checks.check_count("revive_after", self.revive_after, minimum=0)

    @property
    def num_groups(self) -> int:
        return self.num_clusters

    def make_centroids(self, weights: SelectorWeights) -> CentroidGrouper:
        return weights.centroids(self.num_clusters, self.ema_decay, self.revive_after, self.commitment_loss)

    @property
    def reach(self) -> int:
        return self.cluster_size - 1


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Nearest(CentroidPattern, GroupBand):
    """The last `cluster_size` keys of the query's cluster, up to its position.

    Without a causal mask, also the next `cluster_size` - 1 keys. Under a causal mask, results never depend on later
    tokens.

    The cluster of a token is its nearest centroid. Centroids are found by online k-means of LN(q) and LN(k), where LN
    is layer normalization without scale. Source: Roy et al. 2021. The paper's own selection is
    `RoutingAttention(selection="top_k")`.

    Args:
        num_clusters: K, centroids per head.
        cluster_size: w, keys per side that a query attends to in its cluster, including the key at its own position.
        ema_decay: decay rate of the exponential moving averages that define the centroids, in [0, 1). Default 0.999.
        commitment_loss: weight of mean((u - mu)^2) in the training loss, with u = LN(q) or LN(k) and its centroid mu.
            Default 1e-4. 0: no loss.
        revive_after: a centroid that gets no token for this many training steps moves to the largest cluster. Default
            100. 0: never.

    Raises:
        ValueError: if an argument is invalid.
    """

    @property
    def band(self) -> int:
        return self.cluster_size

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return GroupSelector(self.make_centroids(weights), self.num_groups, weights.num_heads, weights.normalizes)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class RandomGroups(GroupBand):
    """The last `cluster_size` keys of the query's random group, `RoutingAttention(selection="random")`.

    Args:
        num_clusters: K, groups per head.
        cluster_size: w, keys per side that a query attends to in its group, including its own position.

    Raises:
        ValueError: if an argument is invalid.
    """

    num_clusters: int
    cluster_size: int

    def __post_init__(self) -> None:
        checks.check_count("num_clusters", self.num_clusters)
        checks.check_count("cluster_size", self.cluster_size)

    @property
    def num_groups(self) -> int:
        return self.num_clusters

    @property
    def band(self) -> int:
        return self.cluster_size

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return GroupSelector(RandomGrouper(self.num_clusters, weights.seed), self.num_groups, weights.num_heads)


@dataclasses.dataclass(frozen=True)
class RandomGrouper:
    """Random groups that depend only on positions and the seed, a `Grouper`."""

    num_groups: int
    seed: int

    def assign(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return the group of each token, int32 (B, n, T)."""
        batch, num_heads, length, _ = shape(heads)
        groups = random_groups(positions, num_heads, self.num_groups, self.seed)
        return ops.broadcast_to(groups, (batch, num_heads, length))
