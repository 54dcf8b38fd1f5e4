"""Jensen-Shannon divergence between the attention weights of heads."""

import dataclasses
import itertools
from typing import Any

import keras
import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.analysis.attention_rows import record_attentions
from tf_sparse_attention.analysis.pictures import COLORS, import_pyplot

MAX_DIVERGENCE = np.log(2)  # for heads that share no keys


@dataclasses.dataclass(frozen=True)
class LayerDivergence:
    """Divergence between two kinds of heads of one layer.

    Attributes:
        layer: index of the layer.
        name: path of the layer.
        kinds: pair of kinds, such as "local|routing".
        mean: mean divergence in nats, over pairs of heads and queries, then over runs.
        deviation: standard deviation over runs.
        num_pairs: number of pairs of heads.
    """

    layer: int
    name: str
    kinds: str
    mean: float
    deviation: float
    num_pairs: int


@dataclasses.dataclass(frozen=True)
class HeadDivergence:
    """Divergence of heads in all layers. `str(divergence)` is a Markdown table like in the paper.

    Attributes:
        rows: list of `LayerDivergence`.
        num_runs: number of sequences in means and deviations.
    """

    rows: list[LayerDivergence]
    num_runs: int

    def table(self) -> str:
        """Return a Markdown table with a row per layer and a column per pair of kinds."""
        kinds = self._kinds()
        lines = ["| layer | " + " | ".join(kind.replace("|", "\\|") for kind in kinds) + " |"]
        lines.append("|---" * (1 + len(kinds)) + "|")
        for layer in self._layers():
            cells = {row.kinds: f"{row.mean:.4f} ± {row.deviation:.4f}" for row in self.rows if row.layer == layer}
            lines.append(f"| {layer} | " + " | ".join(cells.get(kind, "-") for kind in kinds) + " |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def draw(self, axes: Any = None) -> Any:
        """Draw the means and deviations by layer, a line for each two kinds of heads.

        Args:
            axes: matplotlib axes. None: a new figure.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: where matplotlib is not installed (extra `plot`).
        """
        if axes is None:
            _, axes = import_pyplot().subplots(figsize=(6, 3.2))
        for kinds, color in zip(self._kinds(), itertools.cycle(COLORS)):
            rows = [row for row in self.rows if row.kinds == kinds]
            layers, means, deviations = (
                [getattr(row, name) for row in rows] for name in ("layer", "mean", "deviation")
            )
            axes.errorbar(layers, means, yerr=deviations, color=color, marker="o", capsize=3, label=kinds)
        axes.axhline(MAX_DIVERGENCE, color="#888888", linewidth=1, linestyle="--")
        axes.set(xlabel="layer", ylabel="divergence (nats)", ylim=(0, 1.08 * MAX_DIVERGENCE), xticks=self._layers())
        axes.legend(frameon=False)
        return axes.figure

    def _kinds(self):
        return sorted({row.kinds for row in self.rows})

    def _layers(self):
        return sorted({row.layer for row in self.rows})


def head_divergence(model: keras.layers.Layer, batch: Any, max_queries: int | None = None) -> HeadDivergence:
    """Measure the divergence between the attention weights of a model's heads, as in Table 6 of Roy et al. 2021.

    For attention weights a and b of a query in two heads of a layer, and m = (a + b) / 2, the divergence is
    JSD(a, b) = KL(a || m) / 2 + KL(b || m) / 2 nats, at most log 2 = 0.6931, averaged over queries. Queries that see no
    key in one of the heads (tokens without a cluster) are excluded for this pair. No epsilon is added: keys that a head
    does not see have probability 0.

    Cost: per layer, one backward pass for every H queries, for heads of H channels; O(T S) memory for S keys.

    Args:
        model: Keras model with attention layers of this library.
        batch: inputs of the model; each row is a run.
        max_queries: number of evenly spaced queries; None for all. Default: None.

    Returns:
        A `HeadDivergence`; `print` shows the table.

    Raises:
        ValueError: If no layer has two heads.

    Example:
        >>> print(head_divergence(model, np.zeros((2, 64), "int32")))  # doctest: +ELLIPSIS
        | layer | local\\|local |...
    """
    checks.check_optional_count("max_queries", max_queries)
    rows, num_runs = [], 0
    for number, attention in enumerate(record_attentions(model, batch)):
        totals, counts = _sums_of_pairs(attention, max_queries)
        num_runs = totals.shape[-1]
        rows += _rows(number, attention, totals, counts)
    if not rows:
        raise ValueError("`model` must have a layer with at least two heads. Received: one head per layer.")
    return HeadDivergence(rows, num_runs)


def jensen_shannon(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the Jensen-Shannon divergence of distributions (..., S) in nats, (...,), exactly 0 for equal inputs."""
    return _divergence(first, second, _entropy(first), _entropy(second))


def _divergence(first, second, *entropies):
    """Return the entropy of the mean minus the mean of the entropies, with one logarithm per pair of heads."""
    return np.maximum(_entropy((first + second) / 2) - sum(entropies) / 2, 0)


def _entropy(weights):
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -np.einsum("...s,...s->...", weights, logarithms)


def _sums_of_pairs(attention, max_queries):
    """Return sums of divergences over queries, and the numbers of queries, both (num_pairs, B)."""
    length = attention.parts[0].heads[0].shape[2]
    queries = None
    if max_queries is not None and max_queries < length:
        queries = np.arange(max_queries) * length // max_queries
    pairs = list(itertools.combinations(range(len(attention.kinds)), 2))
    totals = counts = None
    for _, weights in attention.rows(queries):
        weights = weights.astype("float64")  # (B, N, t, S)
        mass = weights.sum(axis=-1, keepdims=True)
        weights = np.divide(weights, mass, out=np.zeros_like(weights), where=mass > 0)
        sees = mass[..., 0] > 0  # (B, N, t)
        both = np.stack([sees[:, i] & sees[:, j] for i, j in pairs]) if pairs else np.zeros((0, len(sees), 1), bool)
        entropies = _entropy(weights)  # (B, N, t)
        of_pairs = [_divergence(*(x[:, head] for x in (weights, entropies) for head in pair)) for pair in pairs]
        divergences = np.where(both, np.stack(of_pairs), 0).sum(axis=-1) if pairs else np.zeros((0, len(sees)))
        totals = divergences if totals is None else totals + divergences
        counts = both.sum(axis=-1) if counts is None else counts + both.sum(axis=-1)
    return totals, counts


def _rows(number, attention, totals, counts):
    """Return the `LayerDivergence` of each pair of kinds with a query that sees keys in both heads."""
    kinds = attention.kinds
    names = ["|".join(sorted((kinds[i], kinds[j]))) for i, j in itertools.combinations(range(len(kinds)), 2)]
    rows = []
    for name in sorted(set(names)):
        own = np.array([name == other for other in names])
        with np.errstate(invalid="ignore"):
            runs = np.nanmean(np.where(counts[own] > 0, totals[own] / counts[own], np.nan), axis=0)
        runs = runs[np.isfinite(runs)]
        if len(runs):
            rows.append(
                LayerDivergence(number, attention.name, name, float(runs.mean()), float(runs.std()), int(own.sum()))
            )
    return rows
