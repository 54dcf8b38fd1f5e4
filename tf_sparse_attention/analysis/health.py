"""How a model uses its clusters and spans, with advice where something is amiss."""

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
    """How one head uses its clusters.

    Attributes:
        layer: path of its attention layer.
        head: number of the head in that layer, from 0.
        selection: "nearest", or another of `RoutingAttention` by which clusters choose their tokens.
        num_clusters: K.
        cluster_size: w.
        dead: clusters that no token of the batch is nearest to.
        entropy: of the shares of tokens that clusters have, divided by log K: 1 where all have as many, 0 where one has
            all.
        overfull: share of the tokens that are in clusters with more than `cluster_size` tokens of their row.
        dropped: share of the tokens that attend to nothing, so that the head gives them zeros; with the values of
            successors the first of each cluster are among them.
        drift: how far a centroid moved since the report before, in lengths of a token, the mean; None where there is
            none.
        shares: of the tokens that each cluster has, in the order of the clusters.
        reads_successors: whether keys have the values of the tokens after them.
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
    """The adaptive spans of one layer.

    Attributes:
        layer: path of the layer.
        window: the longest that a span can be, in positions.
        spans: those of its heads, in positions.
    """

    layer: str
    window: int
    spans: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Health:
    """A report of `health`; as text, a table and the advice.

    Attributes:
        heads: list of `RoutedHead`.
        spans: list of `Spans`.
        advice: list of sentences; empty where nothing is amiss.
        centroids: dictionary of the centroids by their path, float (N, K, H), to compare the next report with.
    """

    heads: list[RoutedHead]
    spans: list[Spans]
    advice: list[str]
    centroids: dict[str, np.ndarray] = dataclasses.field(repr=False)

    def table(self) -> str:
        """Return a Markdown table, a row a routed head, and one of the layers with spans."""
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
        return "\n".join([self.table(), "", *(self.advice or ["Nothing is amiss."])])


def health(model: keras.layers.Layer, batch: Any, previous: Health | None = None) -> Health:
    """Return how a model uses its clusters and spans on a batch, with advice where something is amiss.

    One call of the model, and one of each routed attention; the cost is linear in the length.

    Args:
        model: Keras model or layer with attention layers of this library; such a layer itself is called with a causal
            mask if it has the values of successors.
        batch: what it is called with: arrays, without targets.
        previous: an earlier report of the same model, to measure the drift of centroids from. Default: None.

    Returns:
        A `Health`; `print` shows it.

    Raises:
        ValueError: for a model without routed heads and adaptive spans, for a batch that is no arrays or padding alone,
            and for a report of another model.

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
            f"`model` must have routed heads with centroids, or adaptive spans. Received: {model.name} without."
        )
    return Health(heads, spans, advise(heads, spans), centroids)


def _layer_of(span):
    """Return the path of the layer that a span is one of."""
    return span.fraction.path.rsplit("/", 2)[0]


def _routed_parts(part: AttentionCall) -> list[tuple[range, Leaf, Centroids, list[tuple[np.ndarray, np.ndarray]]]]:
    """Return, for each leaf with centroids, its heads, the leaf, its centroids, and the clusters of its tokens."""
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
    """Return a mask of tokens, or that of all of them, as NumPy bool (B, T)."""
    return np.broadcast_to(True if mask is None else ops.convert_to_numpy(mask), (batch, length))


def _dropped(part):
    """Return the share of the tokens that see nothing, for each head: float (N,)."""
    output = to_numpy(part.attend([ops.ones_like(values) for values in part.values]))  # zeros where nothing is seen
    exists = _which(part.masks.query_mask, output.shape[0], output.shape[2])
    empty = ~output.any(axis=-1) & exists[:, None]
    return empty.sum(axis=(0, 2)) / max(exists.sum(), 1)


def _drift(previous, path, now):
    """Return how far the centroids of each head moved, in lengths of a token, float (N,); None where they are new."""
    before = previous.centroids.get(path)
    if before is None:
        return None
    if before.shape != now.shape:
        raise ValueError(
            "`previous` must be a report of the same model. "
            f"Received: centroids of shape {before.shape} at {path}, which has {now.shape} now."
        )
    return np.linalg.norm(now - before, axis=-1).mean(axis=-1) / np.sqrt(now.shape[-1])


def _heads_of(part, numbers, leaf, sides, dropped, drift):
    """Return the `RoutedHead`s of one leaf; keys and centroids may be those of several heads beside each other."""
    num_clusters, size = leaf.pattern.num_clusters, leaf.pattern.cluster_size
    selection = getattr(part.layer, "selection", "nearest")
    for index, head in enumerate(numbers):
        counts = np.concatenate(  # of each row by itself, queries and keys too
            [
                np.bincount(row[is_token], minlength=num_clusters)[None]
                for clusters, exists in sides
                for row, is_token in zip(clusters[:, index * clusters.shape[1] // len(numbers)], exists, strict=True)
            ]
        )
        total = counts.sum()
        if total == 0:
            raise ValueError(f"`batch` must have tokens that are no padding. Received: none for {part.layer.name}.")
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
