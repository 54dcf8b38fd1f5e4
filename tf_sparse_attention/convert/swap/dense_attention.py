"""Inspection of the dense layer to replace: Keras's multi-head attention, or an attention class of KerasHub."""

import inspect
from typing import Any, TypeAlias

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.convert.swap.families import (
    UNSUPPORTED,
    family_arguments,
    family_of,
    family_unsupported_reason,
)
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.layers.parts.projections import get_attribute
from tf_sparse_attention.patterns.pattern import Union

SparseLayer: TypeAlias = AttentionLayer | MixedAttention
KERAS_CLASSES = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
GROUPED_NAMES = {"num_query_heads": "num_heads", "head_dim": "key_dim"}  # from names of `GroupQueryAttention` to ours
# Methods that compute attention: a subclass that overrides any of them may compute something else. KerasHub's subclass
# overrides `build`, which is therefore not listed.
COMPUTING_METHODS = {"call", "_compute_attention", "_masked_softmax", "_compute_attention_mask", "_compute_causal_mask"}
# Arguments of `call` that `SwappedAttention` also has, of Keras and of KerasHub's `CachedMultiHeadAttention`.
CALL_ARGUMENTS = set(inspect.signature(keras.layers.MultiHeadAttention.call).parameters)
CACHE_ARGUMENTS = {"cache", "cache_update_index"}


def arguments_of(attention: keras.layers.Layer, window: int | None = None) -> dict[str, Any]:
    """Return the constructor arguments that a layer of this library shares with a dense attention.

    Args:
        attention: a `keras.layers.MultiHeadAttention` or `keras.layers.GroupQueryAttention`, or the built attention of
            a KerasHub model with its own class, see `docs/converting.md`.
        window: positions that the new layer sees on each side, including the query itself. If None, the result has no
            `window`; `replace_attention` still applies the attention's `sliding_window`. Default: None.

    Returns:
        Dictionary with `name`, `dtype`, `num_heads`, `key_dim`, `dropout`, `use_bias`, `kernel_initializer` and, for
        grouped-query attention, `num_key_value_heads`. If `window` is given, the dictionary has `window`, limited to
        the attention's `sliding_window`. Keras's layers add `value_dim`, `output_shape`, `seed`, the other
        initializers, regularizers, constraints and, if enabled, `use_gate`. Classes of KerasHub add `position`, its
        settings, `use_output_bias`, `attention_scale`, `logit_soft_cap`, `use_sink`, `use_query_key_norm` and others.

    Raises:
        ValueError: If `attention` is not one of these layers, is a KerasHub attention that is not built, or `window`
            is not a positive integer.

    Example:
        >>> dense = keras.layers.MultiHeadAttention(8, 64, use_bias=False)
        >>> layer = tsa.layers.LocalAttention(**arguments_of(dense), window=512)
        >>> layer.num_heads, layer.use_bias
        (8, False)
        >>> arguments_of(keras.layers.MultiHeadAttention(8, 64, sliding_window=128), window=512)["window"]
        128
    """
    if not is_dense_attention(attention):
        raise ValueError(
            "`attention` must be a `keras.layers.MultiHeadAttention`, a `keras.layers.GroupQueryAttention`, or the "
            f"attention of a supported KerasHub model. Received: attention={attention!r}."
        )
    arguments = family_arguments(attention) if family_of(attention) else _shared_config(attention)
    checks.check_optional_count("window", window)
    if window is not None:
        arguments["window"] = min(window, sliding_window_of(attention) or window)
    return arguments


def _shared_config(attention):
    """Return the arguments in the config of Keras's attention that the layers of this library also have."""
    shared = set(inspect.signature(AttentionLayer.__init__).parameters) - {"self", "kwargs"} | {"name", "dtype"}
    config = {GROUPED_NAMES.get(name, name): value for name, value in attention.get_config().items()}
    extra = {name for name in ("num_key_value_heads", "use_gate") if config.get(name)}
    return {name: value for name, value in config.items() if name in shared | extra}


def is_keras_attention(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is a Keras `MultiHeadAttention` or `GroupQueryAttention`, or of a subclass."""
    return isinstance(layer, KERAS_CLASSES)


def is_dense_attention(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is of a class that can be replaced, including subclasses with another computation."""
    return is_keras_attention(layer) or family_of(layer) is not None


def sliding_window_of(attention: keras.layers.Layer, block: keras.layers.Layer | None = None) -> int | None:
    """Return the sliding window of a dense attention, including the query like `window`, or None.

    Args:
        attention: the dense attention.
        block: the layer that contains it. None: without a window that the block applies.
    """
    family = family_of(attention)
    if family is None:
        return attention.get_config().get("sliding_window")
    return family.window(attention, block)


def limit_window(layer: SparseLayer, window: int) -> tuple[SparseLayer, list[str]]:
    """Limit a sparse layer to a window.

    Args:
        layer: an attention layer of this library, not built.
        window: positions on each side, including the query itself.

    Returns:
        Pair of a layer and a list of remarks for the report, as text. The layer is rebuilt from its config if it saw
        beyond the window.

    Raises:
        ValueError: If the layer sees beyond the window even with `window=1`.
    """
    if isinstance(layer, MixedAttention):
        parts, remarks = zip(*(limit_window(part, window) for part in layer.parts), strict=True)
        if any(new is not old for new, old in zip(parts, layer.parts, strict=True)):
            serialized = [keras.saving.serialize_keras_object(part) for part in parts]
            layer = type(layer).from_config({**layer.get_config(), "parts": serialized})
        return layer, [remark for part in remarks for remark in part]
    old_window = getattr(layer, "window", None)
    if old_window is None or isinstance(layer.pattern, Union):
        sees = "sees beyond its window" if old_window else "has no window"
        return layer, [f"{type(layer).__name__} {sees}: it may see further than the sliding_window of {window}"]
    reach = layer.pattern.reach or 0
    if reach < window:
        return layer, []
    new_window = old_window - (reach - (window - 1))
    if new_window < 1:
        raise ValueError(
            f"`make_layer` must return a layer that can be limited to the sliding_window of {window}. "
            f"Received: {layer.name} with window={old_window}."
        )
    layer = type(layer).from_config({**layer.get_config(), "window": new_window})
    change = f"window={new_window} instead of {old_window}"
    return layer, [f"{type(layer).__name__} with {change}: its sliding_window is {window}"]


def is_sparse(layer: keras.layers.Layer) -> bool:
    """Return whether a layer is one of the attention layers of this library."""
    return isinstance(layer, SparseLayer)


def looks_like_attention(layer: keras.layers.Layer) -> bool:
    """Return whether a class name of a layer contains "Attention" and the layer is not an attention mask."""
    if is_sparse(layer) or "Mask" in type(layer).__name__:
        return False
    return any("Attention" in kind.__name__ for kind in type(layer).__mro__)


def unsupported_reason(layer: keras.layers.Layer) -> str | None:
    """Return why an attention layer cannot be replaced by a sparse layer; None if it can."""
    name = type(layer).__name__
    if family_of(layer):
        return family_unsupported_reason(layer)
    if isinstance(layer, SwappedAttention):
        return "it is already sparse: pass the dense model"
    if name in UNSUPPORTED and type(layer).__module__.startswith("keras_hub."):
        return UNSUPPORTED[name]
    if not is_keras_attention(layer):
        return f"{name} is neither a keras.layers.MultiHeadAttention nor of a supported class of KerasHub"
    parts = [part for part in type(layer).__mro__ if issubclass(part, KERAS_CLASSES) and part not in KERAS_CLASSES]
    overridden = COMPUTING_METHODS & {name for part in parts for name in vars(part)}
    arguments = set(inspect.signature(layer.call).parameters)
    has_cache = CACHE_ARGUMENTS <= arguments <= CALL_ARGUMENTS | CACHE_ARGUMENTS
    if overridden - {"call"} or (overridden and not has_cache):
        return f"{name} overrides the computation of its base class"
    if not layer.built:
        return "it is not built"
    kernels = [get_attribute(layer, f"{name}_dense").kernel for name in ("query", "key", "value")]
    if len(get_attribute(layer, "attention_axes", (1,))) != 1 or any(len(kernel.shape) != 3 for kernel in kernels):
        return "it attends over several axes"
    return None
