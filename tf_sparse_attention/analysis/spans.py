"""Pictures of the spans that the heads of a model have learned."""

from typing import Any

import keras
import numpy as np

from tf_sparse_attention.analysis.pictures import COLORS, import_pyplot
from tf_sparse_attention.layers.parts.adaptive_span import find_spans


def spans_of(model: keras.layers.Layer) -> list[np.ndarray]:
    """Return the spans of a model's layers, in positions: a list of int arrays (N,), one a layer that has spans.

    Args:
        model: Keras layer or model, built.
    """
    return [span.spans() for span in find_spans(model)]


def draw_spans(model: keras.layers.Layer, axes: Any = None) -> Any:
    """Draw how far each head of each layer sees: a dot a head over the number of its layer, on a logarithmic scale.

    As figure 4 of Sukhbaatar et al. 2019, "Adaptive Attention Span in Transformers".

    Args:
        model: Keras layer or model with `adaptive_span` in some of its layers, built.
        axes: matplotlib axes to draw into; None for a new figure. Default: None.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is not installed (extra `plot`).
        ValueError: for a model without spans.

    Example:
        >>> draw_spans(model).savefig("spans.png")
    """
    pyplot = import_pyplot()
    spans = spans_of(model)
    if not spans:
        raise ValueError(f"`model` must have layers with `adaptive_span`. Received: {model.name}, which has none.")
    if axes is None:
        _, axes = pyplot.subplots(figsize=(max(3.0, 0.4 * len(spans) + 1), 3))
    for number, heads in enumerate(spans):
        columns = number + np.linspace(-0.2, 0.2, len(heads)) if len(heads) > 1 else [number]
        axes.scatter(columns, heads, s=18, color=COLORS[0], zorder=2)
        axes.plot([number - 0.3, number + 0.3], [np.mean(heads)] * 2, color=COLORS[1], linewidth=1.5, zorder=1)
    axes.set(xlabel="layer", ylabel="span (positions)", xticks=range(len(spans)))
    axes.set_yscale("log", base=2)
    return axes.figure
