"""Patterns in which content decides: the tokens of a group see each other, however groups are assigned."""

import dataclasses

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import Numbers
from tf_sparse_attention.ops.blocks import max_size, shape
from tf_sparse_attention.ops.gather import stable_order, take_numbers
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.groups import groups_of_keys
from tf_sparse_attention.ops.merged import MergedGrid, merge_orders
from tf_sparse_attention.ops.sorted import SortedGrid
from tf_sparse_attention.patterns.caches import GroupRings
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.cross_caches import GroupRun
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class GroupBand(Pattern):
    """The last keys of the query's own group up to its position, itself included, and if not causal the next ones.

    With queries that are the keys, O(T band) after two sorts of integers: a band on the order by (group, position).
    Keys of their own cost 3 to 4 times as much. What is known of a token is its "group", of `ops.groups.groups_of`.

    A subclass gives `num_groups` and `band`, and `make_grouper(num_heads, key_dim, seed, dtype)`, which returns an
    object with `assign(heads, positions)`: the group of each token, int32 (B or 1, n, T) in 0 .. `num_groups` - 1.
    """

    by_content = True
    takes_successors = True

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        raise NotImplementedError(f"{type(self).__name__} must define `num_groups`.")

    @property
    def band(self) -> int:
        """Keys of its group that a query sees on a side, counting the one at its own position."""
        raise NotImplementedError(f"{type(self).__name__} must define `band`.")

    @property
    def reach(self) -> int:
        return self.band - 1

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        # Two comparisons of ranks as they are, rather than one of differences, which are an array of all pairs.
        return query.group == key.group, key.rank > query.rank - self.band, key.rank < query.rank + self.band

    def arrange(self, call: Call, known: Known = None) -> SortedGrid | MergedGrid:
        arrangement = SortedGrid if known[0]["group"] is known[1]["group"] else MergedGrid
        return arrangement(known, call.batch, self.band, call.causal, call.lead)

    def describe(self, known: Numbers) -> Numbers:
        query_groups, key_groups = (x["group"] for x in known)
        _, key_ranks = stable_order(key_groups)
        query_ranks = key_ranks
        if query_groups is not key_groups:
            sizes = shape(query_groups)[0], shape(key_groups)[0]
            sides = query_groups, repeat_key_heads(key_groups, query_groups.shape[1])
            merged = merge_orders(*(_with_batch(x, max_size(*sizes)) for x in sides))
            query_ranks = take_numbers(merged.last_key, merged.query_slots)
        return {"group": query_groups, "rank": query_ranks}, {"group": groups_of_keys(key_groups), "rank": key_ranks}

    def cache(self) -> GroupRings:
        return GroupRings(self.num_groups, self.band)

    def cross_cache(self) -> GroupRun:
        return GroupRun(self.band)


@dataclasses.dataclass(frozen=True)
class CentroidPattern(Pattern):
    """A pattern of clusters whose centroids online k-means of LN(q) and LN(k) moves, see `layers.parts.centroids`.

    Args:
        num_clusters: K, centroids of each head.
        cluster_size: w, keys of its cluster that a query sees.
        ema_decay: weight of the past in the moving averages that centroids are, in [0, 1). Default 0.999.
        commitment_loss: factor of mean((x - centroid)^2) in the loss of training. Default 1e-4; 0: none.
        revive_after: training steps without a token after which a centroid moves to the fullest one. Default 100; 0:
            never.
    """

    num_clusters: int
    cluster_size: int
    ema_decay: float = 0.999
    commitment_loss: float = 1e-4
    revive_after: int = 100

    by_content = True

    def __post_init__(self) -> None:
        check_sizes(self, "num_clusters", "cluster_size")
        checks.check_rate("ema_decay", self.ema_decay)
        checks.check_not_negative("commitment_loss", self.commitment_loss)
        checks.check_count("revive_after", self.revive_after, minimum=0)

    @property
    def num_groups(self) -> int:
        return self.num_clusters

    @property
    def reach(self) -> int:
        return self.cluster_size - 1


def _with_batch(groups: Tensor, batch: Size) -> Tensor:
    return ops.broadcast_to(groups, (batch, *shape(groups)[1:]))


def check_sizes(pattern: Pattern, *names: str) -> None:
    """Raises a `ValueError` unless the named fields of a pattern are positive integers."""
    for name in names:
        checks.check_count(name, getattr(pattern, name))
