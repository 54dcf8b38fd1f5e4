"""What is said of causal calls and blocks where a selection looks at the whole sequence: a warning, or an error."""

import warnings

import keras


def warn_of_causal_mask(layer: keras.layers.Layer, what: str, instead: str) -> None:
    """Warns, the first time, that a causal mask does not make a selection of a layer causal that looks ahead.

    Args:
        layer: with `selection`; it remembers that it has warned.
        what: what depends on the whole sequence, as text.
        instead: the selection to use, as text.
    """
    _warn_once(
        layer,
        f"under a causal mask is not causal: {what} depends on the whole sequence. Use selection={instead!r}, the "
        "default.",
    )


def warn_of_causal_block(layer: keras.layers.Layer) -> None:
    """Warns, the first time, that the cross-attention of a causal block chooses among queries that come later."""
    _warn_once(
        layer,
        "as cross-attention of a causal block is not causal: which tokens a cluster holds depends on later queries. "
        "Use selection='top_keys'.",
    )


def _warn_once(layer, reason):
    if getattr(layer, "_has_warned", False):
        return
    layer._has_warned = True
    warnings.warn(f"{type(layer).__name__} with selection={layer.selection!r} {reason}", stacklevel=4)


def refuse_causal_mask(selection: str, instead: str) -> None:
    """Raises a `ValueError` for a causal call of heads whose clusters choose their keys.

    Args:
        selection: what chooses so, as text.
        instead: what to use where later positions must be hidden, as text.
    """
    raise ValueError(
        f"`use_causal_mask` must be False with {selection}, whose keys are chosen of the whole sequence: "
        f"take {instead} where later positions must be hidden. Received: use_causal_mask=True."
    )
