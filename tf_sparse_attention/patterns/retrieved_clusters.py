"""Retrieved clusters: small balanced clusters of earlier keys. Each query reads those that fit it best."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.attend import lowest, softmax
from tf_sparse_attention.ops.balanced_clusters import bisect_keys
from tf_sparse_attention.ops.block_selection import NO_BLOCK, count_blocks, sum_groups
from tf_sparse_attention.ops.gather import rewrite_slots, take_positions, take_rows, take_slots
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import (
    are_known,
    find_top_k,
    fold_groups,
    in_range,
    max_size,
    pad_axis,
    repeat_key_heads,
    shape,
    split,
    take_key_heads,
)
from tf_sparse_attention.patterns.arrangement import Arrangement, QueryRuns
from tf_sparse_attention.patterns.cache_policies import Buckets, CachePolicy, Everything, dequantize_rows
from tf_sparse_attention.patterns.cluster_arrangements import (
    CachedEstimates,
    MaskedClusters,
    RetrievedTiles,
    estimates_of,
)
from tf_sparse_attention.patterns.key_clusters import (
    NODE_SIZE,
    Clusters,
    ClusterSelection,
    ClusterSizes,
    in_nodes,
    num_segments,
)
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selected_blocks import (
    OneSoftmax,
    OwnBlocks,
    add_to_sums,
    rewind_sums,
    tiles_are_faster,
    with_own_block,
)
from tf_sparse_attention.patterns.selection import (
    MANY_TOKENS,
    NewTokens,
    Selection,
    SelectionInputs,
    Selector,
    SelectorWeights,
    TokenInfo,
)
from tf_sparse_attention.types import Size, Tensor


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

    With `num_nodes`, a query selects clusters only in the `num_nodes` nodes with the largest q_i . mean(k). A node is
    the eight clusters of one part of the bisection. Nodes that are not searched count as one key each, with the mean
    key and value. In decoding, a token then reads the means of T / 8c nodes instead of T / c clusters, which is faster
    after long contexts. Calls with 16 or more tokens score all clusters, and are slower with nodes. With few nodes,
    queries miss single relevant keys (docs/pretrained.md).

    Combine it with a window and the first tokens, which trained models need: `Window(64) | First(4) |
    RetrievedClusters(55)`. If all clusters are selected, the result is that of dense attention.

    Cost O(T num_clusters c) for attention, and O(T^2 / c) for the scores of centroids. With estimates and other
    patterns in the union, a call also masks O(T^2) pairs, to count the members that a query does not attend to.
    Content-based patterns cannot be in the same union.

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
        num_nodes: number of nodes that a query searches, at least `num_clusters` / 8. A segment must have at least one
            node. None (default): no nodes.

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
    num_nodes: int | None = None

    content_based = True
    must_be_causal = True
    selects_alone = True

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
        checks.check_optional_count("num_nodes", self.num_nodes)
        if self.num_nodes is not None and number < NODE_SIZE:
            raise ValueError(
                f"`segment` must have at least {NODE_SIZE} clusters with `num_nodes`. "
                f"Received: segment={self.segment}, cluster_size={self.cluster_size}."
            )
        if self.num_nodes is not None and self.num_nodes * NODE_SIZE < self.num_clusters:
            raise ValueError(
                f"`num_nodes` must be at least num_clusters / {NODE_SIZE}. "
                f"Received: num_nodes={self.num_nodes}, num_clusters={self.num_clusters}."
            )

    @property
    def reach(self) -> int:
        return self.cluster_size

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        run = key.position // self.cluster_size
        visible = run == query.position // self.cluster_size
        group = ops.where(run < self.sizes.first_run(query.position), key.cluster, run)
        for selected in query.features.values():
            visible = (selected == group) | visible
        return visible

    @property
    def sizes(self) -> "ClusterSizes":
        """The `ClusterSizes`."""
        return ClusterSizes(self.cluster_size, self.segment)

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        chosen = cast(ClusterSelection, selection)
        length = call.query_length
        own = OwnBlocks(length, call.key_length, self.cluster_size, 0, 0)
        if chosen.choices is None:
            return own
        estimates = estimates_of(chosen, length) if self.use_estimate else []
        if not tiles_are_faster(length, self.num_clusters, self.cluster_size):
            segments = [(start, min(start + self.segment, length)) for start in range(0, length, self.segment)]
            runs = QueryRuns(MaskedClusters(chosen, segment) for segment in segments)
            return OneSoftmax(runs, *estimates) if estimates else runs
        group_size = call.group_size if self.use_shared_choice else 1
        retrieved = RetrievedTiles(chosen, length, group_size)
        return OneSoftmax(own, retrieved, *estimates)

    def make_selector(self, weights: SelectorWeights) -> Selector:
        return ClusterSelector(self)

    def cache(self) -> CachePolicy:
        return RetrievedSlots(self)


@dataclasses.dataclass(frozen=True)
class RetrievedSlots(Everything):
    """All positions. A query reads its run, and the selected runs and clusters; clusters follow the runs in buckets."""

    pattern: RetrievedClusters
    is_exact = True

    @property
    def shares_reads(self) -> bool:  # type: ignore[override]  # depends on the pattern
        return self.pattern.use_shared_choice

    def num_slots(self, max_length: Size) -> Size:
        return count_blocks(max_length, self.pattern.cluster_size) * self.pattern.cluster_size

    def buckets(self, query: TokenInfo, num_slots: Size, selection: Any = None) -> Buckets | None:
        size, choices = self.pattern.cluster_size, selection.choices
        if choices is not None:
            is_cluster = ops.logical_and(
                choices >= 0, choices < self.pattern.sizes.first_run(query.position)[..., None]
            )
            choices = ops.where(is_cluster, choices + num_slots // size, choices)
        return Buckets(with_own_block(query.position // size, choices), size)

    def extra_slots(self, entry: Mapping[str, Tensor]) -> Tensor | None:
        return entry.get("cluster_slots")

    def estimates(
        self, entry: Mapping[str, Tensor], selection: Any, positions: Tensor
    ) -> list[tuple[Arrangement, Tensor, Tensor]]:
        if "cluster_value" not in entry:
            return []
        size, slots = self.pattern.cluster_size, entry["cluster_slots"]
        first_run, together = self.pattern.sizes.first_run(positions)[:, None, :, None], positions[:, None, None]
        found = list[tuple[Arrangement, Tensor, Tensor]]()

        def add_all(name, first, is_estimated):
            """Add the means of clusters or nodes of complete segments, which are before `first`."""
            key, value = (entry[f"{name}_{side}"][:, :, None] for side in ("key", "value"))
            is_complete = ops.arange(shape(is_estimated)[-1], dtype="int32") < first
            mask = ops.logical_and(is_complete, is_estimated)[:, :, None]
            found.append((CachedEstimates(slots[:, :, None], together, mask), key, value))

        if (numbers := selection.candidates) is None:
            add_all("cluster", first_run, selection.estimated_clusters(shape(slots)[2] // size))
        else:
            key, value = (take_slots(entry[f"cluster_{side}"], numbers) for side in ("key", "value"))
            members = take_slots(slots, _expand(numbers, size))
            mask = selection.estimated_clusters(shape(numbers)[-1])[:, :, :, None]
            found.append((CachedEstimates(members, positions[:, None, :, None], mask), key, value))
        if selection.is_searched is not None:
            add_all("node", first_run // NODE_SIZE, ops.logical_not(selection.is_searched))
        return found


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
            clusters = Clusters(key, masks.key_mask, pattern.sizes)
        num_runs = count_blocks(length, size)
        if are_known(num_runs) and num_runs < 2:
            return ClusterSelection(length, clusters, None, None, pattern.sizes)
        heads = num_heads, key.shape[1]
        scores, allowed, is_searched = self._scores(query, key, masks.key_mask, clusters, num_runs)
        selection = self._choose(scores, allowed, heads, length)
        return dataclasses.replace(selection, clusters=clusters, is_searched=is_searched)

    def _search(
        self, query: Tensor, means: Tensor, first_run: Tensor, heads: tuple[int, int], has_keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the indices of searched nodes, see `_best`, and a mask of searched nodes (B, N, T, Gn).

        Args:
            query: (B, N, T, H).
            means: of nodes (B, M, Gn, H).
            first_run: see `ClusterSizes.first_run`, int32 (1 or B, 1, T, 1).
            heads: numbers of query heads N and key heads.
            has_keys: bool (B, N, 1, Gn), False for nodes of padding.
        """
        is_complete = ops.arange(shape(means)[2], dtype="int32") < first_run // NODE_SIZE
        return self._best(
            _products(query, means), merge(is_complete, has_keys), cast(int, self._pattern.num_nodes), heads
        )

    def _choose(self, scores: Tensor, allowed: Tensor, heads: tuple[int, int], length: Size) -> "ClusterSelection":
        """Return the selection of queries by their scores (B, N, T, R) for clusters or runs 0, 1, ..."""
        pattern, num_runs = self._pattern, shape(scores)[-1]
        count = min(pattern.num_clusters, num_runs - 1) if are_known(num_runs) else pattern.num_clusters
        if count == 0:
            return ClusterSelection(length, None, None, None, pattern.sizes)
        return ClusterSelection(length, None, *self._best(scores, allowed, count, heads), pattern.sizes)

    def _best(self, scores: Tensor, allowed: Tensor, count: int, heads: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the indices (B, N, T, R) of the highest scores, `NO_BLOCK` for none, and a mask of these indices.

        Args:
            scores: float (B, N, T, G).
            allowed: bool, broadcastable to `scores`.
            count: number of scores; of fewer scores, all are returned.
            heads: numbers of query heads N and key heads.
        """
        lowest_score, number = lowest("float32"), shape(scores)[-1]
        if are_known(number):
            count = min(count, number)
        else:
            missing = max_size(count - number, 0)
            scores, allowed = pad_axis(scores, -1, 0, missing), pad_axis(allowed, -1, 0, missing)
        if self._pattern.use_shared_choice and heads[0] != heads[1]:
            shares = ops.where(allowed, softmax(ops.where(allowed, scores, lowest_score)), 0)
            scores = sum_groups(shares, heads[1])
            allowed = take_key_heads(allowed, heads[1]) if allowed.shape[1] != 1 else allowed
        scores = ops.where(allowed, scores, lowest_score)
        best, choices = find_top_k(scores, count, sorted=True)
        choices = ops.where(best > lowest_score, choices, NO_BLOCK)
        least, last = best[..., -1:], choices[..., -1:]
        # `find_top_k` takes the first of equal scores.
        ties = ops.logical_and(scores == least, ops.arange(shape(scores)[-1], dtype="int32") <= last)
        is_chosen = ops.logical_and(scores > lowest_score, ops.logical_or(scores > least, ties))
        choices, is_chosen = (repeat_key_heads(x, heads[0]) for x in (choices, is_chosen))
        return choices, is_chosen[..., :number]

    def init(self, entry: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the initial state.

        "run_sum", float32 (B, m, R, H): sums of the keys of each run. If a segment can be complete, also "cluster_key"
        and with estimates "cluster_value", float32 (B, m, G, H), the means of clusters, with `num_nodes` "node_key" and
        "node_value", those of nodes, and "cluster_slots", int32 (B, m, L), the slots of the members.
        """
        batch, heads, slots, channels = shape(entry["key"])
        size, segment = self._pattern.cluster_size, self._pattern.segment
        state = {"run_sum": ops.zeros((batch, heads, slots // size, channels), "float32")}
        num_slots = num_segments(slots, segment) * segment
        if are_known(num_slots) and num_slots == 0:
            return state
        sizes = {"cluster": size} if self._pattern.num_nodes is None else {"cluster": size, "node": size * NODE_SIZE}
        for name in ("key", "value") if self._pattern.use_estimate else ("key",):
            for group, number in sizes.items():
                means = ops.zeros((batch, heads, num_slots // number, shape(entry[name])[-1]), "float32")
                state[f"{group}_{name}"] = means
        return {**state, "cluster_slots": ops.zeros((batch, heads, num_slots), "int32")}

    def add(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        sums = add_to_sums(state["run_sum"], inputs.rotated_key, tokens, self._pattern.cluster_size)
        return {"run_sum": sums}, {}

    def complete(self, entry: Mapping[str, Tensor], tokens: NewTokens) -> dict[str, Tensor]:
        """Make the clusters of the segments that the new tokens complete."""
        segment = self._pattern.segment
        old = {name: x for name, x in entry.items() if name.startswith(("cluster_", "node_"))}
        if not old:
            return {}
        if tokens.length is None or tokens.length >= segment:
            return self._make_clusters(entry, old, tokens)
        ends = tokens.start + tokens.counts
        is_due = ops.logical_and(ends // segment > tokens.start // segment, tokens.counts > 0)
        return ops.cond(ops.any(is_due), lambda: self._make_clusters(entry, old, tokens), lambda: old)

    def _make_clusters(self, entry, old, tokens):
        """Return the `old` state with the clusters of the segments that the new tokens complete."""
        size, segment = self._pattern.cluster_size, self._pattern.segment
        batch, heads, num_slots = shape(old["cluster_slots"])
        total, per_segment = num_slots // segment, segment // size
        count = total if tokens.length is None else (tokens.length + segment - 1) // segment
        first = tokens.start // segment  # the segment of the first new token, (B,)
        last = ops.minimum((tokens.start + tokens.counts) // segment, first + count)
        at = first[:, None] * segment + ops.arange(count * segment, dtype="int32")

        def rows(name):
            """Return the keys or values of `count` segments, float32 (B, m, count g, H)."""
            scale = entry.get(f"{name}_scale")
            found = take_positions(entry[name], at[:, None])
            return dequantize_rows(
                found, None if scale is None else take_positions(scale[..., None], at[:, None])[..., 0], "float32"
            )

        def write(slots, made, per_segment):
            """Write what was made of `count` segments, (B, m, count s) or (.., H), to s slots per segment."""
            slot = ops.arange(total * per_segment, dtype="int32")
            number = slot // per_segment
            is_new = ops.logical_and(number >= first[:, None], number < last[:, None])[:, None]
            return rewrite_slots(slots, made, (slot - first[:, None] * per_segment)[:, None], is_new)

        keys = rows("key")
        local = bisect_keys(ops.reshape(keys, (batch, heads, count, segment, shape(keys)[-1])), size)
        local = local + ops.arange(count, dtype="int32")[:, None] * segment
        local = ops.reshape(local, (batch, heads, count * segment))
        made = {"cluster_slots": write(old["cluster_slots"], local + first[:, None, None] * segment, segment)}
        for name in ("key", "value"):
            if f"cluster_{name}" in old:
                members = take_rows(keys if name == "key" else rows(name), local)
                means = ops.mean(split(members, size, -2, count * per_segment), axis=-2)
                made[f"cluster_{name}"] = write(old[f"cluster_{name}"], means, per_segment)
                if f"node_{name}" in old:
                    number = per_segment // NODE_SIZE
                    means = ops.mean(split(means, NODE_SIZE, -2, count * number), axis=-2)
                    made[f"node_{name}"] = write(old[f"node_{name}"], means, number)
        return made

    def select_new(
        self, state: Mapping[str, Tensor], inputs: SelectionInputs, tokens: NewTokens, added: Mapping[str, Tensor]
    ) -> "ClusterSelection":
        size, segment = self._pattern.cluster_size, self._pattern.segment
        query, means, sums = ops.cast(inputs.rotated_query, "float32"), state.get("cluster_key"), state["run_sum"]
        position = tokens.positions[:, None, :, None]
        first_run, base = self._pattern.sizes.first_run(position), ops.zeros_like(tokens.start)
        if tokens.length is not None:  # runs of the segments that have new tokens
            base = self._pattern.sizes.first_run(tokens.start)
            number = ((tokens.length + segment - 2) // segment + 1) * (segment // size)
            sums = take_positions(sums, (base[:, None] + ops.arange(number, dtype="int32"))[:, None])
        run = (base[:, None] + ops.arange(shape(sums)[2], dtype="int32"))[:, None, None]
        scores = _products(query, sums) / size
        allowed = ops.logical_and(run >= first_run, run < position // size)
        heads, num_clusters = (query.shape[1], sums.shape[1]), 0
        candidates = is_searched = None
        if means is not None:
            is_candidate = ops.arange(shape(means)[2], dtype="int32") < first_run
            if self._pattern.num_nodes is not None:
                nodes, is_searched = self._search(query, state["node_key"], first_run, heads)
                if tokens.length is not None and tokens.length < MANY_TOKENS:
                    nodes = take_key_heads(nodes, heads[1]) if self._pattern.use_shared_choice else nodes
                    candidates = _expand(nodes, NODE_SIZE)
                    is_candidate = repeat_key_heads(candidates >= 0, heads[0])
                else:
                    is_candidate = ops.logical_and(is_candidate, in_nodes(is_searched))
            of_clusters = _products(query, means) if candidates is None else _own_products(query, means, candidates)
            num_clusters = shape(of_clusters)[-1]
            scores = ops.concatenate([of_clusters, scores], axis=-1)
            sizes = (*shape(is_candidate)[:3], shape(allowed)[-1])
            allowed = ops.concatenate([is_candidate, ops.broadcast_to(allowed, sizes)], axis=-1)
        chosen = self._choose(scores, allowed, heads, shape(state["key"])[2])
        if chosen.choices is None:
            return chosen
        is_run, choices = chosen.choices >= num_clusters, chosen.choices
        if candidates is not None:
            numbers = repeat_key_heads(candidates, heads[0])
            clusters = ops.take_along_axis(numbers, in_range(choices, num_clusters), axis=-1)
            choices = ops.where(choices < 0, choices, clusters)
        choices = ops.where(is_run, chosen.choices - num_clusters + base[:, None, None, None], choices)
        return dataclasses.replace(chosen, choices=choices, is_searched=is_searched, candidates=candidates)

    def rewind(self, entry: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        return {"run_sum": rewind_sums(entry["run_sum"], entry, lengths, self._pattern.cluster_size)}

    def _scores(self, query, key, counted, clusters, num_runs):
        """Return the scores (B, N, T, R) of clusters or runs 0, 1, .., which a query may select, and `is_searched`."""
        size, num_heads = self._pattern.cluster_size, query.shape[1]
        query = ops.cast(query, "float32")
        keys = ops.cast(key if counted is None else ops.where(counted[:, None, :, None], key, 0), "float32")
        runs = ops.sum(split(keys, size, -2, num_runs), axis=-2)
        has_keys = None
        if counted is None:
            runs = runs / size
        else:
            number = ops.sum(ops.cast(split(counted, size, -1, num_runs), "float32"), axis=-1)[:, None]
            runs, has_keys = runs / ops.maximum(number, 1)[..., None], number > 0

        scores = _products(query, runs)
        position = ops.arange(shape(query)[2], dtype="int32")[:, None]
        if clusters is None:
            allowed = (ops.arange(num_runs, dtype="int32") < position // size)[None, None]
            return scores, merge(allowed, None if has_keys is None else has_keys[:, :, None]), None
        scores, of_clusters = _to_equal_length(scores, _products(query, clusters.means(key, size)))
        run = ops.arange(shape(scores)[-1], dtype="int32")
        first_run = self._pattern.sizes.first_run(position)
        is_complete, is_searched = run < first_run, None
        allowed, found = (run < position // size)[None, None], clusters.has_counted(size)
        if found is not None:
            has_keys, found = _to_equal_length(has_keys, found)
            found = repeat_key_heads(found, num_heads)[:, :, None]
            allowed = merge(allowed, ops.where(is_complete, found, has_keys[:, :, None]))
        if self._pattern.num_nodes is not None:
            heads, node = (num_heads, key.shape[1]), size * NODE_SIZE
            found = clusters.has_counted(node)
            found = None if found is None else repeat_key_heads(found, num_heads)[:, :, None]
            _, is_searched = self._search(query, clusters.means(key, node), first_run[None, None], heads, found)
            is_candidate, _ = _to_equal_length(in_nodes(is_searched), scores)
            allowed = merge(allowed, ops.logical_or(is_candidate, ops.logical_not(is_complete)))
        return ops.where(is_complete, of_clusters, scores), allowed, is_searched


def _to_equal_length(one, other):
    """Pad the last axis of two arrays to the same length."""
    more = shape(one)[-1] - shape(other)[-1]
    return pad_axis(one, -1, 0, max_size(-more, 0)), pad_axis(other, -1, 0, max_size(more, 0))


def _expand(numbers, size):
    """Return the members of groups of `size` consecutive numbers, (B, N, T, R) to (B, N, T, R size)."""
    members = numbers[..., None] * size + ops.arange(size, dtype="int32")
    return ops.reshape(members, (*shape(numbers)[:3], numbers.shape[3] * size))


def _products(query, means):
    """Return the products (B, N, T, G) of queries (B, N, T, H) and means (B, M, G, H)."""
    batch, heads, length, _ = shape(query)
    products = ops.einsum("bmth,bmgh->bmtg", fold_groups(query, means.shape[1]), means)
    return ops.reshape(products, (batch, heads, length, shape(means)[2]))


def _own_products(query, means, numbers):
    """Return the products (B, N, T, C) of queries (B, N, T, H) and their own `numbers` (B, n, T, C) of the means."""
    (batch, _, length, size), heads = shape(query), numbers.shape[1]
    groups = ops.reshape(query, (batch, heads, query.shape[1] // heads, length, size))
    products = ops.einsum("bngth,bntch->bngtc", groups, take_slots(means, numbers))
    return ops.reshape(products, (batch, query.shape[1], length, shape(numbers)[-1]))
