"""What TensorBoard shows of a model beside figures: a sample of text, and pictures of routes and of spans."""

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

WORDS = 40  # of the text whose routes are drawn
DOTS_PER_INCH = 100


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
        text: a text, of which the first words are taken.
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


def health_of(
    model: keras.Model, ids: np.ndarray, previous: tsa.analysis.Health | None = None
) -> tsa.analysis.Health | None:
    """Returns how a model uses its clusters and spans on a text, ids (T,); None where it has neither."""
    if not find_spans(model) and not _routes(model):
        return None
    return tsa.analysis.health(model, np.asarray(ids, "int32")[None], previous)


def health_scalars(report: tsa.analysis.Health) -> dict[str, float]:
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


def cluster_pictures(report: tsa.analysis.Health) -> Iterator[tuple[str, np.ndarray]]:
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
