"""Samples and pictures that TensorBoard shows: text, routes, spans and clusters."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.trainers.shared.sample_sources import LocalModelSource
from tf_sparse_attention.trainers.shared.sampling import generate
from tf_sparse_attention.trainers.tasks.task import Examples

WORDS = 40  # of the text whose routes are drawn
DOTS_PER_INCH = 100
WIDEST = 1200  # pixels of a picture of speech


def sample_text(model: keras.Model, tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """Returns a text that the model writes, of seed 0.

    Args:
        model: a `LanguageModel` that is causal.
        tokenizer: the tokenizer that it is trained with.
        settings: "prompt", "length", "temperature" and "top_p", as `config.generate` has them.
    """
    (sample,) = generate(LocalModelSource(model, tokenizer, dict(settings)))
    return sample["text"]


def pictures(model: keras.Model, tokenizer: Any, text: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields pictures by name, uint8 (height, width, 4): of the spans, and of routes of a text, where there are any.

    Of each layer with routed heads the first of them is drawn, see `tsa.analysis.word_routes`.

    Args:
        model: a built `LanguageModel`.
        tokenizer: the tokenizer that it is trained with.
        text: a text. Its first words are taken.
    """
    if not has_matplotlib():
        return
    if find_spans(model):
        yield "spans", drawn((5, 3), functools.partial(tsa.analysis.draw_spans, model))
    if _routes(model):
        routes = tsa.analysis.word_routes(model, tokenizer, " ".join(text.split()[:WORDS]))
        for layer in sorted({route.layer for route in routes.routes}):
            head = min(route.head for route in routes.routes if route.layer == layer)
            yield f"routes/layer_{layer}_head_{head}", drawn((8, 3), functools.partial(routes.draw, layer, head))


def _routes(model):
    """Returns whether a model has routed heads."""
    return any(isinstance(layer, Centroids) for layer in model._flatten_layers())


class ClusterReports:
    """Reports how a model uses its clusters and spans, each time with the drift since the time before.

    Args:
        model: a language model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._report: tsa.analysis.Health | None = None

    def examples(self, ids: np.ndarray) -> Examples:
        """Returns the report on a sequence of ids (T,), its figures and pictures; of a model without both nothing."""
        if not find_spans(self._model) and not _routes(self._model):
            return Examples()
        self._report = tsa.analysis.health(self._model, np.asarray(ids, "int32")[None], self._report)
        pictures = dict(_cluster_pictures(self._report))
        return Examples(_cluster_scalars(self._report), {"health": str(self._report)}, pictures)


def _cluster_scalars(report):
    """Returns the means over the heads of each routed layer: "routing/PATH/dead", a share, "overfull" and so on."""
    scalars: dict[str, float] = {}
    for layer in dict.fromkeys(head.layer for head in report.heads):
        own = [head for head in report.heads if head.layer == layer]
        values = {name: [getattr(head, name) for head in own] for name in ("overfull", "dropped", "drift")}
        values["dead"] = [head.dead / head.num_clusters for head in own]
        path = layer.split("/", 1)[-1]  # without the name of the model, as other scalars have it
        known = {name: found for name, found in values.items() if None not in found}
        scalars |= {f"routing/{path}/{name}": float(np.mean(found)) for name, found in known.items()}
    return scalars


def _cluster_pictures(report):
    """Yields a picture for each routed layer: the shares of tokens that the clusters of each head have, by size."""
    if not has_matplotlib():
        return
    for layer in dict.fromkeys(head.layer for head in report.heads):
        own = [head for head in report.heads if head.layer == layer]

        def draw(axes, own=own):
            for head in own:
                axes.plot(sorted(head.shares, reverse=True), drawstyle="steps-mid", label=f"head {head.head}")
            axes.set(xlabel="clusters, by size", ylabel="share of the tokens", ylim=(0, None))
            axes.legend(frameon=False)

        yield f"clusters/{layer.split('/', 1)[-1]}", drawn((5, 3), draw)


def has_matplotlib() -> bool:
    """Whether pictures can be drawn; says once where not."""
    try:
        import matplotlib.figure  # noqa: F401  # not pyplot, which would choose a screen
    except ImportError:
        logging.log_first_n(logging.INFO, "No pictures: matplotlib is not installed (extra `plot`).", 1)
        return False
    return True


def drawn(size: tuple[float, float], draw: Callable[..., Any]) -> np.ndarray:
    """Returns what a function of `axes` draws, uint8 (height, width, 4); `size` is its width and height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    draw(axes=figure.subplots())
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def posteriors(features: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """Returns a picture, uint8 (height, width, 3): features (T, F), and below the posteriors of labels (T', V + 1).

    Frames go to the right, low bands and the blank are at the bottom, each row three pixels; up to 1,200 frames.
    """
    stretched = np.repeat(np.exp(log_probs), -(-len(features) // len(log_probs)), axis=0)[: len(features)]
    low, high = np.min(features), np.max(features)
    panels = (features - low) / max(high - low, 1e-6), stretched
    rows = [np.repeat(panel[:WIDEST].T[::-1], 3, axis=0) for panel in panels]
    line = np.ones((3, rows[0].shape[1]))
    shades = np.round(255 * np.concatenate([rows[0], line, rows[1]])).astype("uint8")
    return np.repeat(shades[..., None], 3, axis=-1)
