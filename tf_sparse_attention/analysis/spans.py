"""Plots of the learned attention spans of a model."""

from typing import Any

import keras
import numpy as np

from tf_sparse_attention.analysis.pictures import COLORS, import_pyplot
from tf_sparse_attention.layers.parts.adaptive_span import find_spans


def spans_of(model: keras.layers.Layer) -> list[np.ndarray]:
    """Return the spans of a model in positions: a list of int arrays (N,), one per layer with spans.

    Args:
        model: Keras layer or model, built.
    """
    return [span.spans() for span in find_spans(model)]


def draw_spans(model: keras.layers.Layer, axes: Any = None) -> Any:
    """Draw the spans of all heads by layer, one dot per head, on a logarithmic scale.

    Like Figure 4 of Sukhbaatar et al. 2019, "Adaptive Attention Span in Transformers".

    Args:
        model: Keras layer or model with `adaptive_span` in some of its layers, built.
        axes: matplotlib axes to draw into; None for a new figure. Default: None.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is not installed (extra `plot`).
        ValueError: If the model has no spans.

    Example:
        >>> draw_spans(model).savefig("spans.png")
    """
    pyplot = import_pyplot()
    spans = spans_of(model)
    if not spans:
        raise ValueError(f"`model` must have layers with `adaptive_span`. Received: {model.name} without any.")
    if axes is None:
        _, axes = pyplot.subplots(figsize=(max(3.0, 0.4 * len(spans) + 1), 3))
    for number, heads in enumerate(spans):
        columns = number + np.linspace(-0.2, 0.2, len(heads)) if len(heads) > 1 else [number]
        axes.scatter(columns, heads, s=18, color=COLORS[0], zorder=2)
        axes.plot([number - 0.3, number + 0.3], [np.mean(heads)] * 2, color=COLORS[1], linewidth=1.5, zorder=1)
    axes.set(xlabel="layer", ylabel="span (positions)", xticks=range(len(spans)))
    axes.set_yscale("log", base=2)
    return axes.figure
