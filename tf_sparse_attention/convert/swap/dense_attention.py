"""Keras's multi-head attention as what a sparse layer takes the place of."""

import inspect

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.mixed_attention import MixedAttention

CACHE_ARGUMENTS = {"cache", "cache_update_index"}  # of KerasHub's `CachedMultiHeadAttention`


def arguments_of(attention, window=None):
    """Returns the constructor arguments that a layer of this library shares with a dense attention.

    Args:
        attention: a `keras.layers.MultiHeadAttention`.
        window: positions that the new layer is to see on a side, counting the query itself. None: the result has no
            `window`; `replace_attention` applies a `sliding_window` of the attention all the same.

    Returns:
        Dictionary with `name`, `dtype`, `num_heads`, `key_dim`, `value_dim`, `dropout`, `use_bias`, `output_shape`,
        `seed` and the initializers, regularizers and constraints of the projections; with a window also `window`, the
        smaller of it and the attention's own `sliding_window`, if it has one.

    Raises:
        ValueError: for another layer, and for a window that is no positive integer.

    Example:
        >>> dense = keras.layers.MultiHeadAttention(8, 64, use_bias=False)
        >>> layer = tsa.layers.LocalAttention(**arguments_of(dense), window=512)
        >>> layer.num_heads, layer.use_bias
        (8, False)
        >>> arguments_of(keras.layers.MultiHeadAttention(8, 64, sliding_window=128), window=512)["window"]
        128
    """
    if not isinstance(attention, keras.layers.MultiHeadAttention):
        raise ValueError(f"`attention` must be a `keras.layers.MultiHeadAttention`. Received: attention={attention!r}.")
    config = attention.get_config()
    taken = set(inspect.signature(AttentionLayer.__init__).parameters) - {"self", "kwargs"}
    arguments = {name: value for name, value in config.items() if name in taken | {"name", "dtype"}}
    checks.check_optional_count("window", window)
    if window is not None:
        arguments["window"] = min(window, own_window(attention) or window)
    return arguments


def own_window(attention):
    """Returns the `sliding_window` of a dense attention, which counts the query as `window` does here, or None."""
    return attention.get_config().get("sliding_window")


def with_window(layer, window):
    """Returns a sparse layer that sees no further than a window, and what to say of it.

    Args:
        layer: an attention layer of this library, not built.
        window: positions on a side, counting the query itself.

    Returns:
        Pair of the layer, a new one of its config if it saw further, and a list of remarks for the report, as text.

    Raises:
        ValueError: if no window of the layer is so small.
    """
    if isinstance(layer, MixedAttention):
        parts, remarks = zip(*(with_window(part, window) for part in layer.parts), strict=True)
        if all(new is old for new, old in zip(parts, layer.parts, strict=True)):
            return layer, [remark for part in remarks for remark in part]
        serialized = [keras.saving.serialize_keras_object(part) for part in parts]
        layer = type(layer).from_config({**layer.get_config(), "parts": serialized})
        return layer, [remark for part in remarks for remark in part]
    asked = getattr(layer, "window", None)
    if asked is None:
        return layer, [f"{type(layer).__name__} has no window: it may see further than the sliding_window of {window}"]
    if layer.reach < window:
        return layer, []
    smaller = asked - (layer.reach - (window - 1))
    if smaller < 1:
        raise ValueError(
            f"`make_layer` must return a layer that can see as little as the sliding_window of {window}. "
            f"Received: {layer.name} with window={asked}."
        )
    layer = type(layer).from_config({**layer.get_config(), "window": smaller})
    return layer, [f"{type(layer).__name__} with window={smaller} in place of {asked}: its sliding_window is {window}"]


def is_sparse(layer):
    """Whether a layer is one of the attention layers of this library."""
    return isinstance(layer, AttentionLayer | MixedAttention)


def looks_like_attention(layer):
    """Whether a layer's class calls itself attention, whatever it computes."""
    return any("Attention" in kind.__name__ for kind in type(layer).__mro__) and not is_sparse(layer)


def has_cache(attention):
    """Whether a dense attention takes the caches of KerasHub."""
    return set(inspect.signature(attention.call).parameters) >= CACHE_ARGUMENTS


def reason_against(layer):
    """Returns why no sparse layer can take the place of one that calls itself attention; None if one can."""
    dense = keras.layers.MultiHeadAttention
    kind = type(layer).__name__
    if not isinstance(layer, dense):
        return f"{kind} is no keras.layers.MultiHeadAttention"
    own = {name for part in type(layer).__mro__ for name in vars(part) if issubclass(part, dense) and part is not dense}
    if own & {"_compute_attention", "_masked_softmax"} or ("call" in own and not has_cache(layer)):
        return f"{kind} computes something else than the attention it derives from"
    if not layer.built:
        return "it is not built"
    if layer.get_config().get("use_gate"):
        return "it has a gate"
    kernels = [projection.kernel for projection in (layer.query_dense, layer.key_dense, layer.value_dense)]
    if len(layer.attention_axes) != 1 or any(len(kernel.shape) != 3 for kernel in kernels):
        return "it attends along several axes"
    return None
