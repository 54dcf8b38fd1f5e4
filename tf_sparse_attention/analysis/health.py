"""Use of clusters and adaptive spans by a model, with advice on problems."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.analysis.attention_rows import AttentionCall, record_attentions
from tf_sparse_attention.analysis.causality.comparison import to_numpy
from tf_sparse_attention.analysis.health_advice import advise
from tf_sparse_attention.layers.attention.attention_layer import head_plans
from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.patterns.engine.head_plans import Leaf, slice_inputs
from tf_sparse_attention.patterns.group_band import GroupSelector
from tf_sparse_attention.patterns.selection import SelectionInputs


@dataclasses.dataclass(frozen=True)
class RoutedHead:
    """Use of clusters by one head.

    Attributes:
        layer: path of the attention layer.
        head: index of the head in the layer.
        selection: `selection` of the `RoutingAttention`, such as "nearest".
        num_clusters: K, number of clusters.
        cluster_size: maximal number of tokens per cluster that are used.
        dead: number of clusters that are nearest to no token of the batch.
        entropy: entropy of the distribution of tokens over clusters, divided by log K: 1 if uniform, 0 if one cluster
            has all tokens.
        overfull: fraction of tokens in clusters with more than `cluster_size` tokens of the row.
        dropped: fraction of tokens that attend to nothing, for which the head outputs zeros. With successor values,
            this includes the first token of each cluster.
        drift: mean distance that centroids moved since the previous report, divided by sqrt(H), the norm of a
            normalized token; None without a previous report.
        shares: fraction of tokens per cluster.
        reads_successors: whether the head uses successor values: key j has the value of token j + 1.
    """

    layer: str
    head: int
    selection: str
    num_clusters: int
    cluster_size: int
    dead: int
    entropy: float
    overfull: float
    dropped: float
    drift: float | None
    shares: tuple[float, ...] = dataclasses.field(repr=False, default=())
    reads_successors: bool = False


@dataclasses.dataclass(frozen=True)
class Spans:
    """Adaptive spans of one layer.

    Attributes:
        layer: path of the layer.
        window: maximal span in positions.
        spans: span of each head, in positions.
    """

    layer: str
    window: int
    spans: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Health:
    """Report of `health`. `str(report)` is Markdown tables and the advice.

    Attributes:
        heads: list of `RoutedHead`.
        spans: list of `Spans`.
        advice: list of sentences; empty without problems.
        centroids: dictionary of centroids by path, float (N, K, H), from which the next report measures drift.
    """

    heads: list[RoutedHead]
    spans: list[Spans]
    advice: list[str]
    centroids: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def table(self) -> str:
        """Return a Markdown table with a row per routed head, and a table with a row per layer with spans."""
        lines = []
        if self.heads:
            lines = ["| layer | head | dead clusters | entropy | overfull | dropped | drift |", "|---" * 7 + "|"]
        for each in self.heads:
            drift = "-" if each.drift is None else f"{each.drift:.3f}"
            shares = f"{each.entropy:.2f} | {each.overfull:.0%} | {each.dropped:.1%} | {drift}"
            lines.append(f"| {each.layer} | {each.head} | {each.dead} of {each.num_clusters} | {shares} |")
        if self.spans:
            lines += [""] * bool(lines) + ["| layer | spans | window |", "|---" * 3 + "|"]
        for own in self.spans:
            lines.append(f"| {own.layer} | {', '.join(map(str, own.spans))} | {own.window} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.table(), "", *(self.advice or ["No problems found."])])


def health(model: keras.layers.Layer, batch: Any, previous: Health | None = None) -> Health:
    """Report how a model uses its clusters and adaptive spans on a batch, with advice on problems.

    Cost: one call of the model and one additional call per routed attention, linear in the length.

    Args:
        model: Keras model or layer with attention layers of this library. An attention layer that supports only causal
            calls, for example with successor values, is called with a causal mask.
        batch: input of the model, an array or a structure of arrays, without targets.
        previous: earlier report of the same model, from which to measure the drift of centroids. Default: None.

    Returns:
        A `Health`; `print` shows it.

    Raises:
        ValueError: If the model has neither routed heads nor adaptive spans, if `batch` has other items than arrays or
            only padding, or if `previous` is a report of another model.

    Example:
        >>> layer = tsa.layers.RoutingAttention(2, 8, num_clusters=4, cluster_size=16, selection="top_k", seed=0)
        >>> report = health(layer, keras.random.normal((1, 64, 16), seed=0))
        >>> print(report)  # doctest: +ELLIPSIS
        | layer | head | dead clusters | entropy | overfull | dropped | drift |...
    """
    if previous is not None and not isinstance(previous, Health):
        raise ValueError(f"`previous` must be None or a report of `health`. Received: previous={previous!r}.")
    heads, centroids = [], {}
    for attention in record_attentions(model, batch):
        for part in attention.parts:
            found = _routed_parts(part)
            dropped = _dropped(part) if found else np.zeros(0)
            for numbers, leaf, grouper, sides in found:
                path = grouper.centroids.path
                centroids[path] = to_numpy(grouper.centroids)
                drift = None if previous is None else _drift(previous, path, centroids[path])
                heads += _heads_of(part, numbers, leaf, sides, dropped, drift)
    spans = [Spans(_layer_of(span), span.window, tuple(int(x) for x in span.spans())) for span in find_spans(model)]
    if not heads and not spans:
        raise ValueError(
            f"`model` must have routed heads with centroids, or adaptive spans. Received: {model.name} without any."
        )
    return Health(heads, spans, advise(heads, spans), centroids)


def _layer_of(span):
    """Return the path of the layer that a span belongs to."""
    return span.fraction.path.rsplit("/", 2)[0]


def _routed_parts(part: AttentionCall) -> list[tuple[range, Leaf, Centroids, list[tuple[np.ndarray, np.ndarray]]]]:
    """Return, for each primitive pattern with centroids: its heads, the pattern, its centroids and token clusters."""
    selectors, found = part.layer.selectors, []
    if not any(selectors):
        return []
    query, key = part.heads[:2]
    key = query if key is None else key
    for plan in head_plans(part.layer):
        own = slice_inputs(plan, SelectionInputs(query, key, query, key, part.masks))
        for leaf in plan.leaves:
            selector = selectors[leaf.index]
            if isinstance(selector, GroupSelector) and isinstance(selector.grouper, Centroids):
                clusters = [_clusters(selector, *side) for side in own.sides()]
                found.append((plan.heads, leaf, selector.grouper, clusters))
    return found


def _clusters(selector, tokens, mask):
    """Return the cluster of each token, int (B, n, T), and whether each token exists, bool (B, T)."""
    clusters = ops.convert_to_numpy(selector.assign(tokens, ops.arange(tokens.shape[2], dtype="int32")[None]))
    return clusters, _which(mask, clusters.shape[0], clusters.shape[2])


def _which(mask, batch, length):
    """Return a token mask as NumPy bool (B, T); all True for None."""
    return np.broadcast_to(True if mask is None else ops.convert_to_numpy(mask), (batch, length))


def _dropped(part):
    """Return the fraction of tokens that see no key, per head: float (N,)."""
    output = to_numpy(part.attend([ops.ones_like(values) for values in part.values]))  # zeros where no key is seen
    exists = _which(part.masks.query_mask, output.shape[0], output.shape[2])
    empty = ~output.any(axis=-1) & exists[:, None]
    return empty.sum(axis=(0, 2)) / max(exists.sum(), 1)


def _drift(previous, path, now):
    """Return the mean distance that each head's centroids moved, divided by sqrt(H): float (N,), or None.

    The result is None if `previous` does not have the centroids.
    """
    before = previous.centroids.get(path)
    if before is None:
        return None
    if before.shape != now.shape:
        raise ValueError(
            "`previous` must be a report of the same model. "
            f"Received: centroids of shape {before.shape} at {path}, now of shape {now.shape}."
        )
    return np.linalg.norm(now - before, axis=-1).mean(axis=-1) / np.sqrt(now.shape[-1])


def _heads_of(part, numbers, leaf, sides, dropped, drift):
    """Yield the `RoutedHead`s of one primitive pattern; consecutive heads may share keys and centroids."""
    num_clusters, size = leaf.pattern.num_clusters, leaf.pattern.cluster_size
    selection = getattr(part.layer, "selection", "nearest")
    for index, head in enumerate(numbers):
        counts = np.concatenate(  # separate counts per row, and per side: queries and keys
            [
                np.bincount(row[is_token], minlength=num_clusters)[None]
                for clusters, exists in sides
                for row, is_token in zip(clusters[:, index * clusters.shape[1] // len(numbers)], exists, strict=True)
            ]
        )
        total = counts.sum()
        if total == 0:
            raise ValueError(f"`batch` must have tokens that are not padding. Received: none for {part.layer.name}.")
        shares = counts.sum(axis=0) / total
        nats = 0 - np.sum(shares * np.log(np.where(shares > 0, shares, 1)))
        yield RoutedHead(
            layer=part.layer.path or part.layer.name,
            head=head,
            selection=selection,
            num_clusters=num_clusters,
            cluster_size=size,
            dead=int((shares == 0).sum()),
            entropy=float(nats / np.log(num_clusters)) if num_clusters > 1 else 1.0,
            overfull=float(counts[counts > size].sum() / total),
            dropped=float(dropped[head]),
            drift=None if drift is None else float(drift[index * len(drift) // len(numbers)]),
            shares=tuple(shares.tolist()),
            reads_successors=leaf.reads_successors,
        )
