"""Arrangements of queries with selected clusters, and with the means of other clusters."""

import math
from typing import cast

import numpy as np
from keras import ops

from tf_sparse_attention.ops.block_selection import count_blocks
from tf_sparse_attention.ops.shapes import are_known, pad_axis, repeat_key_heads, shape, slice_axis, split
from tf_sparse_attention.patterns.arrangement import Arrangement, OneGroup, QueryRuns, query_runs
from tf_sparse_attention.patterns.key_clusters import NODE_SIZE, Clusters, ClusterSelection, ClusterSizes
from tf_sparse_attention.patterns.selected_blocks import MaskedBlocks, SelectedTiles
from tf_sparse_attention.types import Size, Tensor


class RetrievedTiles(SelectedTiles):
    """Pairs of a query and a selected cluster or run in tiles, see `SelectedTiles`.

    The blocks are first the clusters of complete segments, then all runs.
    """

    def __init__(self, selection: ClusterSelection, query_length: Size, group_size: int) -> None:
        choices, size = cast(Tensor, selection.choices), selection.sizes.cluster
        self._clusters = clusters = selection.clusters
        self._num_runs = count_blocks(selection.length, size)
        if clusters is not None:
            is_run = choices >= selection.sizes.first_run(ops.arange(query_length, dtype="int32")[:, None])
            choices = ops.where(is_run, choices + clusters.num_slots // size, choices)
        num_clusters = 0 if clusters is None else clusters.num_slots // size
        super().__init__(choices, size, (num_clusters + self._num_runs) * size, group_size)
        self.key_length = selection.length

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        runs = pad_axis(x, axis, 0, self._num_runs * self._block_size - shape(x)[axis])
        if self._clusters is not None:
            sorted_keys = self._clusters.take(x, axis)
            if axis == -1:
                sorted_keys = repeat_key_heads(sorted_keys, self._sizes[1])
                runs = ops.broadcast_to(runs, (*shape(sorted_keys)[:2], shape(runs)[-1]))
            runs = ops.concatenate([sorted_keys, runs], axis=axis)
        return super().keys(runs, axis)

    def key_positions(self) -> Tensor:
        return self.keys(ops.arange(self.key_length, dtype="int32")[None, None], -1)


class MaskedClusters(MaskedBlocks):
    """The queries of a segment with all keys up to its end: earlier segments sorted by cluster, and a mask.

    Args:
        selection: the `ClusterSelection`, with choices.
        query_range: pair of the first query of the segment, and the one after the last.
    """

    sorts_tokens = True

    def __init__(self, selection: ClusterSelection, query_range: tuple[int, int]) -> None:
        super().__init__(cast(Tensor, selection.is_chosen), query_range, selection.sizes.cluster, selection.length)
        self._clusters = selection.clusters

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        start, stop = self._range
        keys = slice_axis(x, axis, start, stop)
        if start > 0:
            earlier = slice_axis(cast(Clusters, self._clusters).take(x, axis), axis, 0, start)
            if axis == -1:
                earlier = repeat_key_heads(earlier, self._is_selected.shape[1])
                keys = ops.broadcast_to(keys, (*shape(earlier)[:2], stop - start))
            keys = ops.concatenate([earlier, keys], axis=axis)
        return ops.expand_dims(keys, axis - 1)

    def key_positions(self) -> Tensor:
        return self.keys(ops.arange(self.key_length, dtype="int32")[None, None], -1)


class ClusterMembers(Arrangement):
    """The members of clusters that are estimated by their means, see `Arrangement.members`.

    Args:
        estimates: the `ClusterEstimates` or `CachedEstimates`.
    """

    is_exact = True

    def __init__(self, estimates: "ClusterEstimates | CachedEstimates") -> None:
        self._estimates = estimates

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._estimates.queries(x, axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._estimates.member_keys(x, axis)

    def query_positions(self) -> Tensor:
        return self._estimates.query_positions()

    def key_positions(self) -> Tensor:
        return self._estimates.order

    def causal_mask(self) -> Tensor:
        return np.ones((1, 1), bool)  # estimates have a mask of complete segments

    def key_exists(self) -> Tensor:
        return ops.ones((1, 1, 1, 1, shape(self._estimates.order)[-1]), "bool")


class ClusterEstimates(OneGroup):
    """A range of queries with the means of the first clusters, as one group.

    Args:
        clusters: the `Clusters`.
        is_estimated: bool (B, N, T, G), whether a query has an estimate of each cluster, if its segment is complete.
        query_range: pair of the first query, and the one after the last.
        sizes: the `ClusterSizes`; of nodes, with the keys per node.
        count: number of clusters.
        key_length: S.

    Attributes:
        order: int32 (B, M, 1, L), the position of each member. Runs of c are clusters.
    """

    is_exact = True
    has_pair_mask = True
    sorts_tokens = True

    def __init__(
        self,
        clusters: Clusters,
        is_estimated: Tensor,
        query_range: tuple[Size, Size],
        sizes: ClusterSizes,
        count: Size,
        key_length: Size,
    ) -> None:
        self._clusters, self._is_estimated, self._range = clusters, is_estimated, query_range
        self._sizes, self._count, self.key_length = sizes, count, key_length
        self.order = slice_axis(clusters.order, -1, 0, count * sizes.cluster)[:, :, None]

    @property
    def members(self) -> Arrangement:
        return ClusterMembers(self)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, *self._range), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        means = ops.cast(self._clusters.means(x, self._sizes.cluster), x.dtype)
        return ops.expand_dims(slice_axis(means, -2, 0, self._count), -3)

    def member_keys(self, x: Tensor, axis: int = -2) -> Tensor:
        x = slice_axis(self._clusters.take(x, axis), axis, 0, shape(self.order)[-1])
        return ops.expand_dims(x, axis - 1)

    def query_positions(self) -> Tensor:
        return ops.arange(*self._range, dtype="int32")[None]

    def key_positions(self) -> Tensor:
        return repeat_key_heads(_mean_positions(self.order, self._sizes.cluster), self._is_estimated.shape[1])

    def pair_mask(self) -> Tensor:
        """Return whether a cluster is in a segment before that of the query, and is estimated."""
        size, segment = self._sizes
        segments = ops.arange(self._count, dtype="int32") * size // segment
        is_complete = segments < self.query_positions()[..., None] // segment
        is_estimated = slice_axis(slice_axis(self._is_estimated, -2, *self._range), -1, 0, self._count)
        return ops.logical_and(is_complete, is_estimated[:, :, None])


class CachedEstimates(Arrangement):
    """New queries with gathered means of clusters, in decoding.

    Args:
        order: int32 (B, n, g, L), the position of each member. Runs of c are clusters.
        positions: int32 (B, 1, g, t), the position of each query: g groups of t consecutive queries.
        mask: bool (B, N, g, t, C), whether a query has an estimate of each cluster.
    """

    is_exact = True
    has_pair_mask = True
    sorts_tokens = True
    key_length = 0

    def __init__(self, order: Tensor, positions: Tensor, mask: Tensor) -> None:
        self.order, self._positions, self._mask = order, positions, mask

    @property
    def members(self) -> Arrangement:
        return ClusterMembers(self)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.reshape(x, (*shape(x)[:2], *shape(self._positions)[2:], *shape(x)[3:]))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return x

    member_keys = keys

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.reshape(x, (*shape(x)[:2], math.prod(shape(self._positions)[2:]), *shape(x)[4:]))

    def query_positions(self) -> Tensor:
        return self._positions

    def key_positions(self) -> Tensor:
        size = shape(self.order)[-1] // shape(self._mask)[-1]
        return repeat_key_heads(_mean_positions(self.order, size), self._mask.shape[1])

    def pair_mask(self) -> Tensor:
        return self._mask


def _mean_positions(order, size):
    """Return the mean position of each `size` members, rounded down, int32 (B, n, g, L) to (B, n, g, L / size)."""
    return ops.sum(split(order, size, -1, shape(order)[-1] // size), axis=-1) // size


def estimates_of(selection: ClusterSelection, length: Size) -> list[Arrangement]:
    """Arrange queries with the means of clusters, and of nodes: in runs, so that few pairs are later ones."""
    clusters, (size, segment) = selection.clusters, selection.sizes
    if clusters is None:
        return []

    def arrange(is_estimated, size):
        def part(start, stop, count):
            sizes = ClusterSizes(size, segment)
            return ClusterEstimates(clusters, is_estimated, (start, stop), sizes, count, selection.length)

        if not are_known(length):
            return part(0, length, clusters.num_slots // size)
        # At least one segment, whose clusters no query sees if it is the only one.
        return QueryRuns(
            part(start, stop, max((stop - 1) // segment, 1) * (segment // size))
            for start, stop in query_runs(length, 2 * segment)
        )

    estimates = [arrange(selection.estimated_clusters(clusters.num_slots // size), size)]
    if selection.is_searched is not None:
        estimates.append(arrange(ops.logical_not(selection.is_searched), size * NODE_SIZE))
    return estimates
