"""Retrieved clusters: keys of complete segments in small balanced clusters, of which each query reads the best."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.attend import Attended, lowest, score_dtype
from tf_sparse_attention.ops.balanced_clusters import bisect_keys
from tf_sparse_attention.ops.block_selection import NO_BLOCK, count_blocks
from tf_sparse_attention.ops.gather import take_numbers, take_unique_rows
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import (
    are_known,
    find_top_k,
    pad_axis,
    repeat_key_heads,
    shape,
    slice_axis,
    split,
    take_key_heads,
)
from tf_sparse_attention.patterns.arrangement import Arrangement, OneGroup, QueryRuns
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selected_blocks import OwnBlocks, SelectedTiles
from tf_sparse_attention.patterns.selection import (
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
    TokenFeatures,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor

MAX_RUNS = 8  # runs of queries that attend to the estimates of clusters: they compute 9/16 of all pairs


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class RetrievedClusters(Pattern):
    """The clusters of earlier keys with the highest-scoring centroids, and the query's run of keys, in one softmax.

    The keys of each complete segment, rotated by position, are divided into balanced clusters of similar keys, per key
    head (`ops.balanced_clusters.bisect_keys`). Keys of the incomplete segment are in runs of `cluster_size` consecutive
    keys. Query i attends to its own run up to position i, and to the `num_clusters` clusters and complete runs with the
    largest q_i . mean(k), or to all of them if there are fewer. Among equal scores, the earlier one wins. The selection
    and the clusters have no gradient, and no weights: the pattern approximates the dense attention of a trained model.
    Only for causal self-attention.

    With `use_estimate`, each cluster that a query does not select is one more key in the softmax: the mean key and the
    mean value of the cluster, counted once per member that the query does not attend to otherwise. Clustered attention
    (Vyas et al. 2020) does so for queries.

    Combine it with a window and the first tokens, which trained models need: `Window(64) | First(4) |
    RetrievedClusters(55)`. If all clusters are selected, the result is that of dense attention.

    Cost O(T num_clusters c) for attention, and O(T^2 / c) for the scores of centroids.

    Sources: balanced clusters as in routing attention (Roy et al. 2021, section 4.1); clusters of the keys of a trained
    model as in Squeezed Attention (Hooper et al. 2024, arXiv 2411.09688), ClusterKV (Liu et al. 2024, arXiv 2412.03213)
    and RetroInfer (Chen et al. 2025, arXiv 2505.02922).

    Args:
        num_clusters: clusters and runs per query, besides its own run. Default 55.
        cluster_size: c, keys per cluster and per run. Default 8.
        segment: g, keys per segment, c times a power of two. Default 512.
        use_estimate: whether clusters that are not selected are estimated by their means. Default True.
        use_shared_choice: whether query heads that share a key head select the same clusters, by the sum of their
            softmax over clusters. Default False: each head selects separately.

    Raises:
        ValueError: if an argument is invalid, if a call is not causal, or has packed documents; with `use_estimate`, if
            a call has an attention mask of pairs.

    Example:
        >>> layer = SparseAttention(num_heads=2, key_dim=8, pattern=RetrievedClusters(1, cluster_size=2, segment=4))
        >>> seen = layer.attention_pattern(keras.random.normal((1, 9, 16)), use_causal_mask=True)
        >>> ops.sum(ops.cast(seen[0, 0], "int32"), axis=-1).numpy().tolist()
        [1, 2, 3, 4, 3, 4, 3, 4, 3]
    """

    num_clusters: int = 55
    cluster_size: int = 8
    segment: int = 512
    use_estimate: bool = True
    use_shared_choice: bool = False

    content_based = True
    must_be_causal = True

    def __post_init__(self) -> None:
        checks.check_count("num_clusters", self.num_clusters)
        checks.check_count("cluster_size", self.cluster_size)
        checks.check_count("segment", self.segment)
        checks.check_switch("use_estimate", self.use_estimate)
        checks.check_switch("use_shared_choice", self.use_shared_choice)
        number, rest = divmod(self.segment, self.cluster_size)
        if rest or number < 2 or number & (number - 1):
            raise ValueError(
                "`segment` must be `cluster_size` times 2, 4, 8 or another power of two. "
                f"Received: segment={self.segment}, cluster_size={self.cluster_size}."
            )

    @property
    def reach(self) -> int:
        return self.cluster_size

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        run, is_complete = (
            key.position // self.cluster_size,
            key.position // self.segment < query.position // self.segment,
        )
        visible = run == query.position // self.cluster_size
        cluster = ops.where(is_complete, key.cluster, run)
        for name, selected in query.features.items():
            if name.startswith("choice_"):
                visible = (selected == cluster) | visible
        return visible

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        chosen = cast(ClusterSelection, selection)
        own = OwnBlocks(call.query_length, call.key_length, self.cluster_size, 0, 0)
        if chosen.choices is None:
            return own
        group_size = call.group_size if self.use_shared_choice else 1
        retrieved = RetrievedTiles(chosen, call.query_length, self, group_size)
        return OwnAndRetrieved(own, retrieved, _estimates(chosen, call, self) if self.use_estimate else None)

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return ClusterSelector(self)


class Clusters:
    """The clusters of the complete segments of a sequence.

    Args:
        key: (B, M, S, H), rotated by position.
        counted: bool (B, S), False for padding; or None.
        cluster_size: c.
        segment: g.

    Attributes:
        num_slots: L, number of keys in complete segments.
        order: int32 (B, M, L), the position of the key in each slot. Runs of c slots are clusters.
        slots: int32 (B, M, S), the slot of each key. Keys of the incomplete segment are in slot S - 1 or before.
    """

    def __init__(self, key: Tensor, counted: Tensor | None, cluster_size: int, segment: int) -> None:
        batch, heads, length, channels = shape(key)
        self.cluster_size, self.length = cluster_size, length
        number = length // segment
        self.num_slots = number * segment
        keys = slice_axis(key, -2, 0, self.num_slots)
        if counted is not None:
            keys = ops.where(counted[:, None, : self.num_slots, None], keys, 0)
        local = bisect_keys(ops.reshape(keys, (batch, heads, number, segment, channels)), cluster_size)
        starts = ops.arange(number, dtype="int32")[:, None] * segment
        self.order = ops.reshape(local + starts, (batch, heads, self.num_slots))
        rest = ops.arange(self.num_slots, length, dtype="int32")
        rest = ops.broadcast_to(rest, (batch, heads, length - self.num_slots))
        self.slots = ops.concatenate([ops.cast(ops.argsort(self.order, axis=-1), "int32"), rest], axis=-1)
        self._is_counted = None if counted is None else self.take(counted[:, None], -1)
        # By identity. Holding the tensors keeps their ids unique.
        self._taken: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def number(self) -> Size:
        """Number of clusters."""
        return self.num_slots // self.cluster_size

    def take(self, x: Tensor, axis: int = -2) -> Tensor:
        """Sort rows (B, M, S, X), or numbers (B or 1, 1 or M, S), by cluster: (.., L, ..)."""
        batch, heads, _ = shape(self.order)
        if axis == -1:
            return take_numbers(ops.broadcast_to(x, (batch, heads, self.length)), self.order)
        has_slot = ops.broadcast_to(ops.arange(self.length, dtype="int32") < self.num_slots, shape(self.slots))
        return take_unique_rows(x, self.order, self.slots, has_slot)

    def means(self, x: Tensor) -> Tensor:
        """Return the mean of each cluster of rows (B, M, S, X), without padding: float32 or float64 (B, M, G, X)."""
        if id(x) not in self._taken:
            self._taken[id(x)] = x, self._means(x)
        return self._taken[id(x)][1]

    def _means(self, x):
        rows = split(
            ops.cast(self.take(x), score_dtype(keras.backend.standardize_dtype(x.dtype))),
            self.cluster_size,
            -2,
            self.number,
        )
        if self._is_counted is None:
            return ops.mean(rows, axis=-2)
        is_counted = ops.cast(split(self._is_counted, self.cluster_size, -1, self.number), rows.dtype)[..., None]
        return ops.sum(rows * is_counted, axis=-2) / ops.maximum(ops.sum(is_counted, axis=-2), 1)

    def has_counted(self) -> Tensor | None:
        """Return whether each cluster has a key that is not padding, bool (B, M, G). None: all have."""
        if self._is_counted is None:
            return None
        return ops.any(split(self._is_counted, self.cluster_size, -1, self.number), axis=-1)


@dataclasses.dataclass(frozen=True)
class ClusterSelection(Selection):
    """The selected clusters and runs of each query.

    Args:
        length: S.
        clusters: the `Clusters` of complete segments; None if no segment is complete.
        choices: int32 (B, N, T, R), numbers of distinct clusters, or of runs in the query's segment, the best first. A
            negative value means none. None: there is nothing to select.
        is_chosen: bool (B, N, T, G), whether each of the `Clusters` is selected; None without clusters.
    """

    length: Size
    clusters: Clusters | None
    choices: Tensor | None
    is_chosen: Tensor | None
    cluster_size: int

    def features(self) -> TokenFeatures:
        """Return "choice_0", "choice_1", ... of queries, and "cluster", the cluster of each key."""
        count = 0 if self.choices is None else shape(self.choices)[-1]
        queries = {f"choice_{number}": cast(Tensor, self.choices)[..., number] for number in range(count)}
        if self.clusters is None:
            runs = ops.arange(self.length, dtype="int32") // self.cluster_size
            return TokenFeatures(queries, {"cluster": runs[None, None]})
        return TokenFeatures(queries, {"cluster": self.clusters.slots // self.cluster_size})


class ClusterSelector(Selector):
    """Selects the clusters, and the runs of the incomplete segment, with the highest score of query and mean key."""

    def __init__(self, pattern: RetrievedClusters) -> None:
        self._pattern = pattern

    def select(self, inputs: SelectionInputs) -> ClusterSelection:
        pattern, masks = self._pattern, inputs.masks
        size, segment = pattern.cluster_size, pattern.segment
        if masks.query_segments is not None:
            raise ValueError("`segment_ids` must be None with RetrievedClusters, which cannot separate documents.")
        if masks.attention_mask is not None and pattern.use_estimate:
            raise ValueError(
                "`attention_mask` must be a mask of keys with RetrievedClusters, whose estimates mix keys: set "
                "`use_estimate=False` for masks of pairs."
            )
        query, key = (ops.stop_gradient(x) for x in (inputs.rotated_query, inputs.rotated_key))
        length, num_heads = shape(key)[2], query.shape[1]
        clusters = None
        if not are_known(length) or length >= segment:
            clusters = Clusters(key, masks.key_mask, size, segment)
        num_runs = count_blocks(length, size)
        if are_known(num_runs) and num_runs < 2:
            return ClusterSelection(length, clusters, None, None, size)
        scores, allowed = self._scores(query, key, masks.key_mask, clusters, num_runs)
        if pattern.use_shared_choice and num_heads != key.shape[1]:
            shares = ops.where(allowed, ops.softmax(ops.where(allowed, scores, lowest("float32")), axis=-1), 0)
            scores = _sum_heads(shares, key.shape[1])
            allowed = take_key_heads(allowed, key.shape[1]) if allowed.shape[1] != 1 else allowed
        scores = ops.where(allowed, scores, lowest("float32"))
        count = min(pattern.num_clusters, num_runs - 1) if are_known(num_runs) else pattern.num_clusters
        best, choices = find_top_k(scores, count, sorted=True)
        choices = ops.where(best > lowest("float32"), ops.cast(choices, "int32"), NO_BLOCK)
        is_chosen = None
        if clusters is not None:
            least, last = best[..., -1:], ops.where(best[..., -1:] > lowest("float32"), choices[..., -1:], -1)
            numbers = ops.arange(clusters.number, dtype="int32")
            of_clusters = slice_axis(scores, -1, 0, clusters.number)
            is_chosen = merge(
                of_clusters > lowest("float32"), (of_clusters > least) | ((of_clusters == least) & (numbers <= last))
            )
            is_chosen = repeat_key_heads(is_chosen, num_heads)
        return ClusterSelection(length, clusters, repeat_key_heads(choices, num_heads), is_chosen, size)

    def _scores(self, query, key, counted, clusters, num_runs):
        """Return the scores (B, N, T, R) of clusters or runs 0, 1, .., and which a query may select."""
        size, segment, num_heads = self._pattern.cluster_size, self._pattern.segment, query.shape[1]
        query = ops.cast(query, "float32")
        keys = ops.cast(key if counted is None else ops.where(counted[:, None, :, None], key, 0), "float32")
        runs = ops.sum(split(keys, size, -2, num_runs), axis=-2)
        has_keys = None
        if counted is None:
            runs = runs / size
        else:
            number = ops.sum(ops.cast(split(counted, size, -1, num_runs), "float32"), axis=-1)[:, None]
            runs, has_keys = runs / ops.maximum(number, 1)[..., None], number > 0

        def products(means):
            return ops.matmul(query, ops.swapaxes(repeat_key_heads(means, num_heads), -1, -2))

        scores = products(runs)
        position = ops.arange(shape(query)[2], dtype="int32")[:, None]
        run = ops.arange(num_runs, dtype="int32")
        allowed = (run < position // size)[None, None]
        if clusters is not None:
            is_complete = run < position // segment * (segment // size)
            missing = num_runs - clusters.number
            of_clusters = pad_axis(products(clusters.means(key)), -1, 0, missing)
            scores = ops.where(is_complete, of_clusters, scores)
            found = clusters.has_counted()
            if found is not None and has_keys is not None:
                found = repeat_key_heads(pad_axis(found, -1, 0, missing), num_heads)[:, :, None]
                allowed = merge(allowed, ops.where(is_complete, found, has_keys[:, :, None]))
        elif has_keys is not None:
            allowed = merge(allowed, has_keys[:, :, None])
        return scores, allowed


def _sum_heads(x, num_key_heads):
    batch, heads, *sizes = shape(x)
    return ops.sum(ops.reshape(x, (batch, num_key_heads, heads // num_key_heads, *sizes)), axis=2)


class RetrievedTiles(SelectedTiles):
    """Pairs of a query and a selected cluster or run in tiles, see `SelectedTiles`.

    The blocks are first the clusters of complete segments, then all runs.
    """

    def __init__(
        self, selection: ClusterSelection, query_length: Size, pattern: RetrievedClusters, group_size: int
    ) -> None:
        choices, size = cast(Tensor, selection.choices), pattern.cluster_size
        self._clusters = clusters = selection.clusters
        self._num_runs = count_blocks(selection.length, size)
        if clusters is not None:
            per_segment = pattern.segment // size
            first = (
                ops.arange(query_length, dtype="int32")[:, None] // pattern.segment * per_segment
            )  # run of the segment
            is_run = choices >= first
            choices = ops.where(is_run, choices + clusters.number, choices)
        num_clusters = 0 if clusters is None else clusters.number
        count = shape(choices)[-1]
        super().__init__(
            [choices[..., number] for number in range(count)], size, (num_clusters + self._num_runs) * size, group_size
        )
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
        slots = super().key_positions()
        if self._clusters is None:
            return slots
        order, sizes = self._clusters.order, shape(slots)
        runs = ops.broadcast_to(
            ops.arange(self._num_runs * self._block_size, dtype="int32"),
            (*shape(order)[:2], self._num_runs * self._block_size),
        )
        positions = repeat_key_heads(ops.concatenate([order, runs], axis=-1), sizes[1])
        return ops.reshape(take_numbers(positions, ops.reshape(slots, (*sizes[:2], -1))), sizes)


class ClusterMembers(OneGroup):
    """Queries start .. stop - 1 with the members of the first `count` clusters, as one group."""

    is_exact = True
    sorts_tokens = True

    def __init__(self, selection: ClusterSelection, start: Size, stop: Size, count: Size, segment: int) -> None:
        self._clusters, self.start, self.stop, self.count = cast(Clusters, selection.clusters), start, stop, count
        self._is_chosen, self._segment, self.key_length = cast(Tensor, selection.is_chosen), segment, selection.length

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, self.start, self.stop), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        x = self._first(self._clusters.take(x, axis), axis)
        return ops.expand_dims(repeat_key_heads(x, self._is_chosen.shape[1]) if axis == -1 else x, axis - 1)

    def _first(self, x, axis):
        return slice_axis(x, axis, 0, self.count * self._clusters.cluster_size)

    def query_positions(self) -> Tensor:
        return ops.arange(self.start, self.stop, dtype="int32")[None]

    def key_positions(self) -> Tensor:
        order = repeat_key_heads(self._first(self._clusters.order, -1), self._is_chosen.shape[1])
        return order[:, :, None]

    def causal_mask(self) -> Tensor:
        """Return whether a member is in a complete segment, and its cluster is not selected."""
        clusters = ops.arange(self.count, dtype="int32") * self._clusters.cluster_size // self._segment
        is_complete = clusters < ops.arange(self.start, self.stop, dtype="int32")[:, None] // self._segment
        chosen = slice_axis(slice_axis(self._is_chosen, -2, self.start, self.stop), -1, 0, self.count)
        rest = ops.logical_and(is_complete, ops.logical_not(chosen))  # (B, N, t, G)
        return ops.repeat(rest, self._clusters.cluster_size, axis=-1)[:, :, None]


class ClusterEstimates(ClusterMembers):
    """Queries start .. stop - 1 with the means of the first `count` clusters, as one group."""

    @property
    def members(self) -> Arrangement:
        return ClusterMembers(self._selection, self.start, self.stop, self.count, self._segment)

    def __init__(self, selection: ClusterSelection, start: Size, stop: Size, count: Size, segment: int) -> None:
        super().__init__(selection, start, stop, count, segment)
        self._selection = selection

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(slice_axis(ops.cast(self._clusters.means(x), x.dtype), -2, 0, self.count), -3)

    def key_positions(self) -> Tensor:
        """Return the mean position of the members of each cluster, rounded down."""
        positions = super().key_positions()[:, :, 0]
        size = self._clusters.cluster_size
        return (ops.sum(split(positions, size, -1, self.count), axis=-1) // size)[:, :, None]


def _estimates(selection: ClusterSelection, call: Call, pattern: RetrievedClusters) -> Arrangement | None:
    """Arrange queries with the means of clusters: in runs of queries, so that few pairs are later ones."""
    if selection.clusters is None:
        return None
    length, segment, number = call.query_length, pattern.segment, selection.clusters.number
    if not are_known(length):
        return ClusterEstimates(selection, 0, length, number, segment)
    segments = count_blocks(length, segment)
    per_run = max(-(-segments // MAX_RUNS), 2)
    runs = []
    for first in range(0, segments, per_run):
        stop = min((first + per_run) * segment, length)
        count = min((stop - 1) // segment * (segment // pattern.cluster_size), number)
        if count == 0:  # the last run has one segment, the only one
            count = number
        runs.append(ClusterEstimates(selection, first * segment, stop, count, segment))
    return QueryRuns(runs)


class OwnAndRetrieved(Arrangement):
    """The query's run, its selected clusters and runs, and the estimates of all other clusters, in one softmax."""

    shares_softmax = True

    def __init__(self, own: OwnBlocks, retrieved: RetrievedTiles, estimates: Arrangement | None) -> None:
        self._retrieved = retrieved
        self.parts = (own, retrieved) if estimates is None else (own, retrieved, estimates)

    def combine(self, results: Sequence[Attended]) -> Attended:
        own, retrieved = results[0], self._retrieved.split_choices(results[1])
        singles = [own, *results[2:]]
        sums = ops.concatenate(
            [*(ops.expand_dims(cast(Tensor, each.log_sum_exp), axis=2) for each in singles), retrieved.log_sum_exp],
            axis=2,
        )
        shares = ops.softmax(sums, axis=2)[..., None]

        def merged(parts, choices):
            if choices is None:
                return None
            total = ops.sum(choices * ops.cast(shares[:, :, len(parts) :], choices.dtype), axis=2)
            return functools.reduce(
                lambda x, pair: x + pair[1] * ops.cast(shares[:, :, pair[0]], choices.dtype), enumerate(parts), total
            )

        weights = merged([each.weights for each in singles], retrieved.weights)
        return Attended(
            merged([each.output for each in singles], retrieved.output), weights, ops.logsumexp(sums, axis=2)
        )
