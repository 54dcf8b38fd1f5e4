"""Keras's multi-head attention as what a sparse layer takes the place of."""

import inspect

import keras

from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.mixed_attention import MixedAttention

CACHE_ARGUMENTS = {"cache", "cache_update_index"}  # of KerasHub's `CachedMultiHeadAttention`


def arguments_of(attention):
    """Returns the constructor arguments that a layer of this library shares with a dense attention.

    Args:
        attention: a `keras.layers.MultiHeadAttention`.

    Returns:
        Dictionary with `name`, `dtype`, `num_heads`, `key_dim`, `value_dim`, `dropout`, `use_bias`, `output_shape`,
        `seed` and the initializers, regularizers and constraints of the projections.

    Raises:
        ValueError: for another layer.

    Example:
        >>> dense = keras.layers.MultiHeadAttention(8, 64, use_bias=False)
        >>> layer = tsa.layers.LocalAttention(**arguments_of(dense), window=512)
        >>> layer.num_heads, layer.use_bias
        (8, False)
    """
    if not isinstance(attention, keras.layers.MultiHeadAttention):
        raise ValueError(f"`attention` must be a `keras.layers.MultiHeadAttention`. Received: attention={attention!r}.")
    config = attention.get_config()
    taken = set(inspect.signature(AttentionLayer.__init__).parameters) - {"self", "kwargs"}
    return {name: value for name, value in config.items() if name in taken | {"name", "dtype"}}


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
