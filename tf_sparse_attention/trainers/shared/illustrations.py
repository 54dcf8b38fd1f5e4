"""Pictures and scalars for TensorBoard: routes, spans, clusters and speech."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.trainers.tasks.task import Examples

NUM_WORDS = 40  # number of words in pictures of routes
DOTS_PER_INCH = 100
MAX_WIDTH = 1200  # pixels of pictures of speech


def pictures(model: keras.Model, tokenizer: Any, text: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and pictures of adaptive spans and of the routes of a text, uint8 (height, width, 4).

    For each layer with routed heads, the picture shows the clusters of the first 40 words for the first routed head,
    see `tsa.analysis.word_routes`.
    """
    if not has_matplotlib():
        return
    if find_spans(model):
        yield "spans", draw_figure((5, 3), functools.partial(tsa.analysis.draw_spans, model))
    if _has_routes(model):
        routes = tsa.analysis.word_routes(model, tokenizer, " ".join(text.split()[:NUM_WORDS]))
        for layer in sorted({route.layer for route in routes.routes}):
            head = min(route.head for route in routes.routes if route.layer == layer)
            yield f"routes/layer_{layer}_head_{head}", draw_figure((8, 3), functools.partial(routes.draw, layer, head))


def _has_routes(model):
    return any(isinstance(layer, Centroids) for layer in model._flatten_layers())


class ClusterReports:
    """Reports on the clusters and spans of a language model, with the drift since the previous report."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._report: tsa.analysis.Health | None = None

    def examples(self, ids: np.ndarray) -> Examples:
        """Report on a sequence of token ids (T,). Models without clusters and spans have an empty report."""
        if not find_spans(self._model) and not _has_routes(self._model):
            return Examples()
        self._report = tsa.analysis.health(self._model, np.asarray(ids, "int32")[None], self._report)
        pictures = dict(_cluster_pictures(self._report))
        return Examples(_cluster_scalars(self._report), {"health": str(self._report)}, pictures)


def _cluster_scalars(report):
    """Return means over the heads of each routed layer: "routing/PATH/dead" (a fraction), "overfull" and others."""
    scalars: dict[str, float] = {}
    for layer in dict.fromkeys(head.layer for head in report.heads):
        heads = [head for head in report.heads if head.layer == layer]
        values = {name: [getattr(head, name) for head in heads] for name in ("overfull", "dropped", "drift")}
        values["dead"] = [head.dead / head.num_clusters for head in heads]
        path = layer.split("/", 1)[-1]  # without the name of the model, as in other scalars
        means = {name: float(np.mean(per_head)) for name, per_head in values.items() if None not in per_head}
        scalars |= {f"routing/{path}/{name}": mean for name, mean in means.items()}
    return scalars


def _cluster_pictures(report):
    """Yield a picture for each routed layer: the fraction of tokens per cluster and head, in descending order."""
    if not has_matplotlib():
        return
    for layer in dict.fromkeys(head.layer for head in report.heads):
        heads = [head for head in report.heads if head.layer == layer]

        def draw(axes, heads=heads):
            for head in heads:
                axes.plot(sorted(head.shares, reverse=True), drawstyle="steps-mid", label=f"head {head.head}")
            axes.set(xlabel="clusters, by size", ylabel="fraction of tokens", ylim=(0, None))
            axes.legend(frameon=False)

        yield f"clusters/{layer.split('/', 1)[-1]}", draw_figure((5, 3), draw)


def has_matplotlib() -> bool:
    """Return whether matplotlib is installed. Otherwise log a message once."""
    try:
        import matplotlib.figure  # noqa: F401  # not pyplot, which needs a display
    except ImportError:
        logging.log_first_n(logging.INFO, "No pictures: matplotlib is not installed. Install the extra `plot`.", 1)
        return False
    return True


def draw_figure(size: tuple[float, float], draw: Callable[..., Any]) -> np.ndarray:
    """Call `draw(axes=...)` and return the picture, uint8 (height, width, 4). `size` is (width, height) in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    draw(axes=figure.subplots())
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def posteriors(features: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """Draw features (T, F) above posteriors of labels (T', V + 1), uint8 (height, width, 3).

    The horizontal axis is time, up to 1,200 frames. Low bands and the blank are at the bottom. Each band or label
    is 3 pixels high.
    """
    stretched = np.repeat(np.exp(log_probs), -(-len(features) // len(log_probs)), axis=0)[: len(features)]
    low, high = np.min(features), np.max(features)
    panels = (features - low) / max(high - low, 1e-6), stretched
    rows = [np.repeat(panel[:MAX_WIDTH].T[::-1], 3, axis=0) for panel in panels]
    line = np.ones((3, rows[0].shape[1]))
    shades = np.round(255 * np.concatenate([rows[0], line, rows[1]])).astype("uint8")
    return np.repeat(shades[..., None], 3, axis=-1)
