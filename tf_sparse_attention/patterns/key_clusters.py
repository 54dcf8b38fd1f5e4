"""Clusters of the keys of a sequence, and the clusters that queries select."""

import dataclasses
from typing import NamedTuple

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.balanced_clusters import bisect_keys
from tf_sparse_attention.ops.block_selection import count_blocks
from tf_sparse_attention.ops.gather import take_numbers, take_unique_rows
from tf_sparse_attention.ops.shapes import (
    are_known,
    in_range,
    max_size,
    pad_axis,
    repeat_key_heads,
    shape,
    slice_axis,
    split,
)
from tf_sparse_attention.patterns.selected_blocks import numbered
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
from tf_sparse_attention.types import Size, Tensor

NODE_SIZE = 8  # clusters per node


class ClusterSizes(NamedTuple):
    """Numbers of keys.

    Attributes:
        cluster: c, keys per cluster and per run.
        segment: g, keys per segment.
    """

    cluster: int
    segment: int

    def first_run(self, position: Tensor) -> Tensor:
        """Return the number of the first run of the segment of each position. Smaller numbers are those of clusters."""
        return position // self.segment * (self.segment // self.cluster)


class Clusters:
    """The clusters of the complete segments of a sequence.

    Args:
        key: (B, M, S, H), rotated by position.
        counted: bool (B, S), False for padding; or None.
        sizes: the `ClusterSizes`.

    Attributes:
        num_slots: L, number of keys in complete segments. If S is unknown, of all segments, padded.
        order: int32 (B, M, L), the position of the key in each slot. Runs of c slots are clusters.
        slots: int32 (B, M, S), the slot of each key; the position of keys in the incomplete segment.
    """

    def __init__(self, key: Tensor, counted: Tensor | None, sizes: ClusterSizes) -> None:
        (batch, heads, length, channels), segment = shape(key), sizes.segment
        self.length = length
        number = num_segments(length, segment)
        self.num_slots = number * segment
        keys = key if counted is None else ops.where(counted[:, None, :, None], key, 0)
        keys = slice_axis(pad_axis(keys, -2, 0, max_size(self.num_slots - length, 0)), -2, 0, self.num_slots)
        local = bisect_keys(ops.reshape(keys, (batch, heads, number, segment, channels)), sizes.cluster)
        starts = ops.arange(number, dtype="int32")[:, None] * segment
        order = ops.reshape(local + starts, (batch, heads, self.num_slots))
        self.order = order if are_known(length) else in_range(order, length)
        rest = ops.broadcast_to(ops.arange(length, dtype="int32"), (batch, heads, length))
        slots = ops.concatenate([ops.cast(ops.argsort(order, axis=-1), "int32"), rest[:, :, self.num_slots :]], axis=-1)
        self.slots = slots[:, :, :length]
        self._is_counted = None if counted is None else self.take(counted[:, None], -1)
        # By identity. Holding the tensors keeps their ids unique.
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}
        self._averages: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def take(self, x: Tensor, axis: int = -2) -> Tensor:
        """Sort rows (B, M, S, X), or numbers (B or 1, 1 or M, S), by cluster: (.., L, ..)."""
        batch, heads, _ = shape(self.order)
        if axis == -1:
            return take_numbers(ops.broadcast_to(x, (batch, heads, self.length)), self.order)
        if id(x) not in self._rows:
            has_slot = ops.broadcast_to(ops.arange(self.length, dtype="int32") < self.num_slots, shape(self.slots))
            slots = in_range(self.slots, self.num_slots)
            self._rows[id(x)] = x, take_unique_rows(x, self.order, slots, has_slot)
        return self._rows[id(x)][1]

    def means(self, x: Tensor, size: int) -> Tensor:
        """Return the means of rows (B, M, S, X) over each `size` slots, without padding: float (B, M, L / size, X)."""
        if (id(x), size) not in self._averages:
            self._averages[id(x), size] = x, self._means(x, size)
        return self._averages[id(x), size][1]

    def _means(self, x, size):
        dtype, number = score_dtype(keras.backend.standardize_dtype(x.dtype)), self.num_slots // size
        rows = split(ops.cast(self.take(x), dtype), size, -2, number)
        if self._is_counted is None:
            return ops.mean(rows, axis=-2)
        is_counted = ops.cast(split(self._is_counted, size, -1, number), rows.dtype)[..., None]
        return ops.sum(rows * is_counted, axis=-2) / ops.maximum(ops.sum(is_counted, axis=-2), 1)

    def has_counted(self, size: int) -> Tensor | None:
        """Return whether each `size` slots have a key that is not padding, bool (B, M, L / size). None: all do."""
        if self._is_counted is None:
            return None
        return ops.any(split(self._is_counted, size, -1, self.num_slots // size), axis=-1)


@dataclasses.dataclass(frozen=True)
class ClusterSelection(Selection):
    """The selected clusters and runs of each query.

    Args:
        length: S.
        clusters: the `Clusters` of complete segments; None if no segment is complete.
        choices: int32 (B, N, T, R), numbers of distinct clusters, or of runs in the query's segment, the best first. A
            negative value means none. None: there is nothing to select.
        is_chosen: bool (B, N, T, R'), whether each number is selected. In decoding, whether each cluster or candidate
            is selected, followed by the same for runs. None: there is nothing to select.
        sizes: the `ClusterSizes`.
        is_searched: bool (B, N, T, Gn), whether a query searches each node. None: there are no nodes.
        candidates: int32 (B, N or M, T, C), the clusters that a query scores, a negative value for none. None: all.
    """

    length: Size
    clusters: Clusters | None
    choices: Tensor | None
    is_chosen: Tensor | None
    sizes: ClusterSizes
    is_searched: Tensor | None = None
    candidates: Tensor | None = None

    def features(self) -> TokenFeatures:
        """Return "choice_0", "choice_1", ... of queries, and "cluster", the cluster of each key."""
        queries = numbered("choice", self.choices)
        if self.clusters is None:
            runs = ops.arange(self.length, dtype="int32") // self.sizes.cluster
            return TokenFeatures(queries, {"cluster": runs[None, None]})
        return TokenFeatures(queries, {"cluster": self.clusters.slots // self.sizes.cluster})

    def estimated_clusters(self, count: Size) -> Tensor:
        """Return which of `count` clusters or candidates are scored and not selected, bool (B, N, T, count)."""
        others = ops.logical_not(slice_axis(self.is_chosen, -1, 0, count))
        if self.candidates is not None:
            return ops.logical_and(others, repeat_key_heads(self.candidates >= 0, others.shape[1]))
        return others if self.is_searched is None else ops.logical_and(others, in_nodes(self.is_searched))


def num_segments(length: Size, segment: int) -> Size:
    """Return the number of complete segments; of all segments, at least one, if the length is unknown."""
    return length // segment if are_known(length) else count_blocks(length, segment)


def in_nodes(is_searched: Tensor) -> Tensor:
    """Return whether each cluster is in a searched node, bool (B, N, T, Gn) to (B, N, T, G)."""
    return ops.repeat(is_searched, NODE_SIZE, axis=-1)
