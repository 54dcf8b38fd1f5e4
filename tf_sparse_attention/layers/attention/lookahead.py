"""A warning for selections that look at the whole sequence."""

import warnings

import keras


def warn_of_causal_mask(layer: keras.layers.Layer, what: str, instead: str) -> None:
    """Warns, the first time, that a causal mask does not make a selection of a layer causal that looks ahead.

    Args:
        layer: with `selection`; it remembers that it has warned.
        what: what depends on the whole sequence, as text.
        instead: the selection to use, as text.
    """
    if getattr(layer, "_has_warned", False):
        return
    layer._has_warned = True
    warnings.warn(
        f"{type(layer).__name__} with selection={layer.selection!r} under a causal mask is not causal: {what} "
        f"depends on the whole sequence. Use selection={instead!r} (the default of causal calls).",
        stacklevel=3,
    )
