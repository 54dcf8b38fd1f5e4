"""Adaptive attention spans, learned per head."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.variables import state_dtype
from tf_sparse_attention.ops.span import Span, needed_window
from tf_sparse_attention.types import Tensor

DEFAULTS = {"ramp": 32, "loss": 1e-7, "initial": 0.0}


def checked_span(adaptive_span: bool | dict[str, float] | None, window: int | None) -> dict[str, Any] | None:
    """Return the settings of an adaptive span with all defaults, or None.

    Args:
        adaptive_span: None or False: no adaptive span. True: the defaults. A dictionary with some of "ramp" (R, default
            32 positions), "loss" (default 1e-7) and "initial" (initial z, default 0).
        window: L, or None.

    Raises:
        ValueError: for another value, and for a span without a window.
    """
    if adaptive_span is None or adaptive_span is False:
        return None
    given = {} if adaptive_span is True else adaptive_span
    if not isinstance(given, dict) or set(given) - set(DEFAULTS):
        raise ValueError(
            f"`adaptive_span` must be None, True or a dictionary with some of {list(DEFAULTS)}. "
            f"Received: adaptive_span={adaptive_span!r}."
        )
    if window is None:
        raise ValueError("`window` must be given where `adaptive_span` is. Received: window=None.")
    settings = {**DEFAULTS, **given}
    checks.check_count("adaptive_span['ramp']", settings["ramp"])
    checks.check_not_negative("adaptive_span['loss']", settings["loss"])
    checks.check_not_negative("adaptive_span['initial']", settings["initial"])
    if settings["initial"] > 1:
        raise ValueError(f"`adaptive_span['initial']` must be at most 1. Received: {settings['initial']}.")
    return settings


def make_span(layer: keras.layers.Layer, num_heads: int, first: int = 0) -> "AdaptiveSpan | None":
    """Create the `AdaptiveSpan` of a layer with `adaptive_span` and `window`, or None."""
    if layer.adaptive_span is None:
        return None
    return AdaptiveSpan(
        num_heads, layer.window, **layer.adaptive_span, first=first, name="span", dtype=layer.dtype_policy
    )


def find_spans(model: keras.layers.Layer) -> "list[AdaptiveSpan]":
    """Return all `AdaptiveSpan` layers of a Keras model or layer."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, AdaptiveSpan)]


def computed_window(layer: keras.layers.Layer) -> int:
    """Return the window to compute: the window of the spans, or that of the layer."""
    span = getattr(layer, "span", None)  # set by `build`
    return layer.window if span is None else span.computed_window


def read_span(layer: keras.layers.Layer, training: bool | None) -> Span | None:
    """Return the `Span` of a call of a layer, or None, and add the loss of the spans in training."""
    if layer.span is None:
        return None
    if training and layer.span.loss_factor:
        layer.add_loss(layer.span.cost())
    return layer.span.read()


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class UnitInterval(keras.constraints.Constraint):
    """Constraint that clips a weight to [0, 1]."""

    def __call__(self, w: Tensor) -> Tensor:
        return ops.clip(w, 0, 1)


class AdaptiveSpan(keras.layers.Layer):
    """Learned attention span of each head, a fraction of its window (Sukhbaatar et al. 2019, section 2).

    The loss `loss` L mean(z) shortens spans, the loss of the task lengthens them. The weight `fraction` (N,) is z.

    Calls compute `computed_window` positions, initially L. `shrink_window` reduces it to the current spans, and with it
    the cost. Compiled programs keep the previous number until they are traced again, which models of this library take
    care of.

    Args:
        num_heads: N.
        window: L, positions.
        ramp: R, positions over which a span ends.
        loss: factor of L mean(z) in the loss. 0: no loss.
        initial: initial z, in [0, 1].
        first: distance of the nearest key, see `ops.span.Span`.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self, num_heads: int, window: int, ramp: int, loss: float, initial: float, first: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.window = window
        self.ramp = ramp
        self.loss_factor = loss
        self.initial = initial
        self.first = first
        self.computed_window = window
        self.fraction = self.add_weight(
            name="fraction",
            shape=(num_heads,),
            initializer=keras.initializers.Constant(initial),
            constraint=UnitInterval(),
            dtype=state_dtype(self),  # half precision has few distinct spans of a long window
            autocast=False,
        )
        self.built = True

    def read(self) -> Span:
        """Return the `Span` of the heads."""
        return Span(ops.convert_to_tensor(self.fraction), self.window, self.ramp, self.first)

    def cost(self) -> Tensor:
        """Return the loss of the spans, a scalar."""
        mean = ops.mean(ops.convert_to_tensor(self.fraction))
        return ops.cast(self.loss_factor * self.window * mean, keras.config.floatx())

    def spans(self) -> np.ndarray:
        """Return the number of positions in the span of each head, partially weighted ones included, int (N,)."""
        reached = np.ceil(ops.convert_to_numpy(self.fraction) * self.window).astype(int) + self.ramp
        return np.minimum(reached, self.window)

    def shrink_window(self, margin: int = 0) -> None:
        """Set `computed_window` to the positions that the spans need, plus `margin`."""
        largest = float(np.max(ops.convert_to_numpy(self.fraction)))
        self.computed_window = needed_window(largest, self.window, self.ramp + margin)
