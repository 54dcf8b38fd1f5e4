"""Checks of the arguments and shapes that all attention layers have."""

import inspect
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.head_settings import HeadSettings
from tf_sparse_attention.patterns.pattern import check_causal
from tf_sparse_attention.types import Shape, Tensor

# Of kinds of positions that need it, what `key_dim` has to be a multiple of.
MULTIPLES = {"rotary": 2, "rotary_2d": 4}

# Arguments of Keras's attention layers that these layers lack: neutral values, and what to do instead.
KERAS_ARGUMENTS = {
    "flash_attention": ((None, False), "Kernels are chosen automatically."),
    "sliding_window": ((None,), "Use `window` of a layer that has it, such as `LocalAttention`."),
}
ATTENTION_AXES = (None, (1,), (1, 2))  # all positions of any inputs, of sequences, of images

# By names that a call does not take, what does it instead.
_CAUSAL = " An attention hides later positions in a call with `use_causal_mask=True`, a block made with `causal=True`."
HINTS = {
    "causal": _CAUSAL,
    "use_causal_mask": _CAUSAL,
    "padding_mask": " A mask of padding is `query_mask` or `key_mask` of an attention, `mask` of a block.",
}


def check_arguments(layer: keras.layers.Layer, arguments: Mapping[str, Any]) -> None:
    """Raises a `ValueError` for a wrong argument of an `AttentionLayer`, all of them given by name."""
    checks.check_keywords(layer, arguments["kwargs"], HeadSettings.names())
    for name in ("num_heads", "key_dim"):
        checks.check_count(name, arguments[name])
    for name in ("value_dim", "max_distance"):
        checks.check_optional_count(name, arguments[name])
    checks.check_optional_count("seed", arguments["seed"], minimum=0)
    checks.check_rate("dropout", arguments["dropout"])
    checks.check_choice("position", arguments["position"], layer.position_kinds)
    checks.check_switch("use_bias", arguments["use_bias"])
    checks.check_optional_switch("use_output_bias", arguments["use_output_bias"])
    position, key_dim, max_distance = (arguments[name] for name in ("position", "key_dim", "max_distance"))
    if key_dim % MULTIPLES.get(position, 1):
        multiple = MULTIPLES[position]
        raise ValueError(
            f"`key_dim` must be {'even' if multiple == 2 else f'a multiple of {multiple}'} for rotary positions. "
            f"Received: key_dim={key_dim}, position={position!r}."
        )
    if max_distance is not None and position not in ("relative", "relative_2d"):
        raise ValueError(
            "`max_distance` must be None unless `position` is 'relative' or 'relative_2d'. "
            f"Received: max_distance={max_distance}, position={position!r}."
        )


def take_keras_arguments(layer: keras.layers.Layer, keywords: dict[str, Any]) -> tuple[int, ...] | None:
    """Remove from keyword arguments those of Keras's attention layers that these layers lack.

    Args:
        layer: the layer that is constructed.
        keywords: arguments by name; loses `attention_axes`, `flash_attention` and `sliding_window`.

    Returns:
        `attention_axes` as a tuple, or None.

    Raises:
        ValueError: for a value that the layer does not support.
    """
    for name, (neutral, hint) in KERAS_ARGUMENTS.items():
        value = keywords.pop(name, None)
        if value not in neutral:
            raise ValueError(
                f"`{name}` must be {' or '.join(map(str, neutral))} with {type(layer).__name__}. {hint} "
                f"Received: {name}={value!r}."
            )
    axes = keywords.pop("attention_axes", None)
    axes = (axes,) if isinstance(axes, numbers.Integral) else tuple(axes) if isinstance(axes, list) else axes
    checks.check_choice("attention_axes", axes, ATTENTION_AXES)
    return axes


def checked_sizes(output_shape: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Returns `output_shape`, an integer or a sequence of them, as a tuple of sizes, or None."""
    if output_shape is None:
        return None
    return checks.checked_counts("output_shape", (output_shape,) if isinstance(output_shape, int) else output_shape)


def check_shapes(query_shape: Shape, value_shape: Shape, key_shape: Shape) -> None:
    """Raises a `ValueError` unless the inputs are as many sequences of vectors, and keys as long as values."""
    for name, sizes in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
        if len(sizes) != 3 or sizes[1] == 0 or sizes[2] is None:
            raise ValueError(
                f"`{name}` must have shape (batch, positions, features) with at least one position and a known "
                f"number of features. Received: {name} of shape {tuple(sizes)}."
            )
    if value_shape[1] != key_shape[1]:
        raise ValueError(
            "`key` and `value` must have the same number of positions. "
            f"Received: key of shape {tuple(key_shape)}, value of shape {tuple(value_shape)}."
        )
    _check_batch(query_shape, value_shape, key_shape)


def check_sources(layer: Any, value: Tensor | None, key: Tensor | None) -> None:
    """Raises a `ValueError` for a key without a value, and for a value that a layer does not take."""
    if key is not None and value is None:
        raise ValueError("`value` must be given where `key` is. Received: value=None and a key.")
    if value is not None and layer.must_be_causal:
        raise ValueError(
            f"`value` and `key` must be None, or `query` itself, with {layer.causal_part}, which is for causal "
            "self-attention alone. Received: a value other than the query."
        )
    if value is not None and layer.share_qk:
        raise ValueError(
            "`value` and `key` must be None, or `query` itself, where queries serve as keys. Pass "
            f"share_qk=False to {type(layer).__name__}. Received: a value other than the query."
        )


def check_symbolic_call(layer: Any, value: Tensor | None, key: Tensor | None, causal: bool) -> None:
    """Raises a `ValueError` for what a layer does not take, whatever the numbers are: when a model is put together."""
    check_sources(layer, value, key)
    if part := layer.causal_part:
        check_causal(part, causal)
    if causal and not layer.can_be_causal:
        raise ValueError(
            f"`use_causal_mask` must be False with {type(layer).__name__} as it is made here, which cannot hide later "
            "positions. Received: use_causal_mask=True."
        )


def check_successors(use_successor_values: bool, mask_self: bool | None = None) -> None:
    """Raises a `ValueError` for `use_successor_values` beside what makes no sense with it."""
    checks.check_switch("use_successor_values", use_successor_values)
    if use_successor_values and mask_self is False:
        raise ValueError(
            "`mask_self` must be None or True with `use_successor_values`, by which no token sees itself. "
            "Received: mask_self=False."
        )


def check_lengths(query: Tensor, value: Tensor) -> None:
    """Raises a `ValueError` if queries and values (B, N, T, H) are known to have different lengths."""
    lengths = query.shape[2], value.shape[2]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(f"`value` must be as long as `query`. Received: lengths {lengths[0]} and {lengths[1]}.")


def check_call(
    layer: keras.layers.Layer, query: Tensor, value: Tensor | None, key: Tensor | None, sizes: Iterable[int]
) -> None:
    """Raises a `ValueError` unless the inputs fit each other and a layer that was built for `sizes` of features."""
    value = query if value is None else value
    check_shapes(query.shape, value.shape, value.shape if key is None else key.shape)
    check_features(layer.name, sizes, query=query.shape, value=value.shape)


def check_mask_names(masks: Iterable[str], known: Sequence[str]) -> None:
    """Raises a `ValueError` for a mask that a layer does not take."""
    if set(masks) - set(known):
        raise ValueError(f"`masks` must be among {known}. Received: {sorted(set(masks) - set(known))}.")


def check_extra_masks(
    attention: keras.layers.Layer, given: Mapping[str, Tensor | None], block: keras.layers.Layer | None = None
) -> None:
    """Raises a `ValueError` for a mask by name that an attention does not take.

    Args:
        attention: an attention layer or a `MixedAttention`.
        given: dictionary of masks in addition to those of every layer; None counts as no mask.
        block: the block that is called with them. None: the attention itself.
    """
    unknown = {name for name, mask in given.items() if mask is not None} - set(attention.extra_mask_names)
    if unknown:
        known = {*inspect.signature((block or attention).call).parameters, *attention.extra_mask_names}
        similar = checks.did_you_mean(min(unknown), known - {"extra_masks"}, count=1, similarity=0.75)
        hint = next((HINTS[name] for name in sorted(unknown) if name in HINTS), similar)
        raise ValueError(
            f"`{min(unknown)}` must be left out unless a part of {attention.name} takes it.{hint} "
            f"Masks that are taken in addition to those of every layer: {list(attention.extra_mask_names)}. "
            f"Received: {sorted(unknown)}."
        )


def check_features(layer: str, sizes: Iterable[int], **shapes: Shape) -> None:
    """Raises a `ValueError` unless the inputs, by name, have the numbers of features that a layer was built for."""
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        if shape[2] != size:
            raise ValueError(
                f"`{name}` must have {size} features, for which {layer} was built. "
                f"Received: {name} of shape {tuple(shape)}."
            )


def _check_batch(query_shape, value_shape, key_shape):
    if len({sizes[0] for sizes in (query_shape, value_shape, key_shape)} - {None}) > 1:
        raise ValueError(
            "`query`, `value` and `key` must have the same batch size. Received: query of shape "
            f"{tuple(query_shape)}, value of shape {tuple(value_shape)}, key of shape {tuple(key_shape)}."
        )
