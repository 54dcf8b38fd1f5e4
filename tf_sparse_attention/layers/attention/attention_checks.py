"""Checks of the arguments, inputs and caches of attention layers."""

import inspect
import numbers
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.layers.parts.head_settings import HeadSettings
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan
from tf_sparse_attention.patterns.engine.kv_cache import NUM_TOKENS, Cache, entry_name, has_room
from tf_sparse_attention.patterns.pattern import primitives
from tf_sparse_attention.types import Shape, Size, Tensor

# `key_dim` must be a multiple of these numbers.
MULTIPLES = {"rotary": 2, "rotary_2d": 4}

# Unsupported arguments of Keras's attention layers: neutral values, and a hint.
KERAS_ARGUMENTS = {
    "flash_attention": ((None, False), "Kernels are chosen automatically."),
    "sliding_window": ((None,), "Use `window` of a layer that has it, such as `LocalAttention`."),
}
ATTENTION_AXES = (None, (1,), (1, 2))  # all positions of any inputs, of sequences, of images

# Hints for unsupported arguments of a call.
_CAUSAL = " Call an attention layer with `use_causal_mask=True`, or construct a block with `causal=True`."
HINTS = {
    "causal": _CAUSAL,
    "use_causal_mask": _CAUSAL,
    "padding_mask": " A padding mask is `query_mask` or `key_mask` of an attention layer, and `mask` of a block.",
}


def check_arguments(layer: keras.layers.Layer, arguments: Mapping[str, Any]) -> None:
    """Raise a `ValueError` for an invalid constructor argument of an `AttentionLayer`."""
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
    """Remove the arguments of Keras's attention layers that these layers do not support.

    Args:
        layer: the layer that is constructed.
        keywords: arguments by name, from which `attention_axes`, `flash_attention` and `sliding_window` are removed.

    Returns:
        `attention_axes` as a tuple, or None.

    Raises:
        ValueError: if a removed argument has an unsupported value.
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
    """Return `output_shape`, an integer or a sequence of integers, as a tuple, or None."""
    if output_shape is None:
        return None
    return checks.checked_counts("output_shape", (output_shape,) if isinstance(output_shape, int) else output_shape)


def check_shapes(query_shape: Shape, value_shape: Shape, key_shape: Shape) -> None:
    """Raise a `ValueError` unless inputs have rank 3 and equal batch sizes, and keys are as long as values."""
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


def can_be_causal(layer: Any) -> bool:
    """Return whether an attention layer supports `use_causal_mask=True`."""
    return layer.pattern is not None and layer.pattern.can_be_causal


def describe_pattern(layer: Any, flag: str, value: bool = True) -> str:
    """Return the class names of a layer and of the first primitive pattern whose attribute `flag` has a value."""
    leaves = [] if layer.pattern is None else primitives(layer.pattern)
    names = [type(leaf).__name__ for leaf in leaves if getattr(leaf, flag) == value]
    return f"{type(layer).__name__} ({names[0]})" if names else type(layer).__name__


def check_call(layer: Any, value: Tensor | None, key: Tensor | None, causal: bool) -> None:
    """Raise a `ValueError` if the pattern of an attention layer does not support a call.

    Args:
        layer: an `AttentionLayer`.
        value: as in the call, None for self-attention.
        key: as in the call.
        causal: whether later positions are masked.
    """
    if key is not None and value is None:
        raise ValueError("`value` must be given where `key` is. Received: value=None and a key.")
    pattern = layer.pattern
    if pattern is not None and pattern.must_be_causal and (value is not None or not causal):
        name = f"{describe_pattern(layer, 'must_be_causal')}, which requires causal self-attention"
        if value is not None:
            raise ValueError(
                f"`value` and `key` must be None, or `query` itself, with {name}. Received: a value other than the "
                "query."
            )
        raise ValueError(f"`use_causal_mask` must be True with {name}. Received: use_causal_mask=False.")
    if value is not None and layer.share_qk:
        raise ValueError(
            "`value` and `key` must be None, or `query` itself, where queries are used as keys. Pass "
            f"share_qk=False to {type(layer).__name__}. Received: a value other than the query."
        )
    if causal and (pattern is None or not pattern.can_be_causal):
        name = describe_pattern(layer, "can_be_causal", False)
        raise ValueError(
            f"`use_causal_mask` must be False with {name}, which cannot mask later positions. "
            "Use LocalAttention, StridedAttention, FixedAttention or RoutingAttention with "
            f"selection='nearest'. Received: use_causal_mask=True, pattern={pattern!r}."
        )


def check_successors(use_successor_values: bool, mask_self: bool | None = None) -> None:
    """Raise a `ValueError` if `use_successor_values` is invalid or contradicts `mask_self`."""
    checks.check_switch("use_successor_values", use_successor_values)
    if use_successor_values and mask_self is False:
        raise ValueError(
            "`mask_self` must be None or True with `use_successor_values`, because no token attends to itself. "
            "Received: mask_self=False."
        )


def check_lengths(query: Tensor, value: Tensor) -> None:
    """Raise a `ValueError` if queries and values (B, N, T, H) have different lengths."""
    lengths = query.shape[2], value.shape[2]
    if None not in lengths and lengths[0] != lengths[1]:
        raise ValueError(f"`value` must be as long as `query`. Received: lengths {lengths[0]} and {lengths[1]}.")


def check_inputs(layer: Any, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> None:
    """Raise a `ValueError` unless the shapes of inputs match each other and a built attention layer."""
    value = query if value is None else value
    check_shapes(query.shape, value.shape, value.shape if key is None else key.shape)
    sizes = layer.num_features, layer.value_dense.kernel.shape[0]
    check_features(layer.name, sizes, query=query.shape, value=value.shape)


def check_mask_names(masks: Iterable[str], known: Sequence[str]) -> None:
    """Raise a `ValueError` for a mask that a layer does not accept."""
    if set(masks) - set(known):
        raise ValueError(f"`masks` must be among {known}. Received: {sorted(set(masks) - set(known))}.")


def check_extra_masks(
    attention: keras.layers.Layer, given: Mapping[str, Tensor | None], block: keras.layers.Layer | None = None
) -> None:
    """Raise a `ValueError` for a mask by name that an attention layer does not accept.

    Args:
        attention: an attention layer or a `MixedAttention`.
        given: masks by name, in addition to those of `AttentionLayer`; None counts as no mask.
        block: the block that is called with the masks. None: the attention layer is called.
    """
    unknown = {name for name, mask in given.items() if mask is not None} - set(attention.extra_mask_names)
    if unknown:
        known = {*inspect.signature((block or attention).call).parameters, *attention.extra_mask_names}
        similar = checks.did_you_mean(min(unknown), known - {"extra_masks"}, count=1, similarity=0.75)
        hint = next((HINTS[name] for name in sorted(unknown) if name in HINTS), similar)
        raise ValueError(
            f"`{min(unknown)}` must not be set unless a part of {attention.name} accepts it.{hint} "
            f"Accepted masks in addition to those of every layer: {list(attention.extra_mask_names)}. "
            f"Received: {sorted(unknown)}."
        )


def check_features(layer: str, sizes: Iterable[int], **shapes: Shape) -> None:
    """Raise a `ValueError` unless inputs, by name, have the numbers of features that a layer was built for."""
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        if shape[2] != size:
            raise ValueError(
                f"`{name}` must have {size} features, as {layer} was built. Received: {name} of shape {tuple(shape)}."
            )


def _check_batch(query_shape, value_shape, key_shape):
    if len({sizes[0] for sizes in (query_shape, value_shape, key_shape)} - {None}) > 1:
        raise ValueError(
            "`query`, `value` and `key` must have the same batch size. Received: query of shape "
            f"{tuple(query_shape)}, value of shape {tuple(value_shape)}, key of shape {tuple(key_shape)}."
        )


def check_entries(cache: Any, names: Iterable[str]) -> None:
    """Raise a `ValueError` unless a cache is a dictionary with some entries.

    Args:
        cache: a value passed as cache.
        names: names of the required entries.
    """
    if not isinstance(cache, Mapping):
        raise ValueError(
            "`cache` must be a dictionary, the result of `init_cache`, `prefill` or `decode`. "
            f"Received: a {type(cache).__name__}."
        )
    if set(names) - set(cache):
        raise ValueError(
            "`cache` must be the result of `init_cache`, `prefill` or `decode` of this layer or model. "
            f"Received: entries {sorted(cache)}, without {sorted(set(names) - set(cache))}."
        )


def check_pattern_entries(cache: Any, plans: Iterable[HeadPlan]) -> None:
    """Raise a `ValueError` unless a cache has the entries of some head plans."""
    check_entries(cache, [entry_name(leaf) for plan in plans for leaf in plan.leaves])


def check_cache(x: Tensor, cache: Cache, plans: Iterable[HeadPlan]) -> None:
    """Raise a `ValueError` unless a cache has the entries of head plans and the batch size of `x`."""
    check_pattern_entries(cache, plans)
    check_entries(cache, [NUM_TOKENS])
    rows, kept = x.shape[0], {leaf.shape[0] for leaf in keras.tree.flatten(cache)}
    if rows is not None and kept - {None, rows}:
        raise ValueError(
            f"`x` must have the batch size of `cache`. Received: {rows} rows, a cache of {max(kept)} rows."
        )


def check_source(name: str, sequence: Tensor, cache: Any) -> None:
    """Raise a `ValueError` unless a sequence (B, S, D) has the batch size and length of a cross-attention cache."""
    for leaf in keras.tree.flatten(cache):
        rows, *middle = leaf.shape
        is_float = "float" in keras.backend.standardize_dtype(leaf.dtype)
        length = middle[1] if is_float and len(middle) == 3 else None  # of keys or values (B, n, S, H)
        pairs = zip(sequence.shape, (rows, length), strict=False)
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            positions = "" if length is None else f" and {length} positions"
            raise ValueError(
                f"`{name}` must be the sequence that `init_cache` had. Received: shape {tuple(sequence.shape)}, "
                f"a cache of {rows} rows{positions}."
            )


def check_index(x: Tensor, index: Size) -> None:
    """Raise a `ValueError` unless `index` is a nonnegative integer, or one integer per row of `x`."""
    dtype = np.asarray(index).dtype if not hasattr(index, "dtype") else keras.backend.standardize_dtype(index.dtype)
    if "int" not in str(dtype):
        raise ValueError(f"`index` must be an integer, or one integer per row. Received: index={index!r}.")
    sizes, rows = tuple(index.shape if hasattr(index, "shape") else np.shape(index)), x.shape[0]
    if len(sizes) > 1 or (sizes and None not in (sizes[0], rows) and sizes[0] not in (1, rows)):
        raise ValueError(
            "`index` must be one position for all rows, or one position per row. "
            f"Received: index of shape {sizes}, x of shape {tuple(x.shape)}."
        )
    if not ops.is_tensor(index) and np.min(index) < 0:
        raise ValueError(f"`index` must be the number of tokens in the cache, at least 0. Received: index={index}.")


def num_cached_tokens(cache: Mapping[str, Any]) -> Tensor:
    """Return the number of tokens per row in the cache of a layer, block or model, int32 (B,)."""
    if NUM_TOKENS in cache:
        return cache[NUM_TOKENS]
    return next(num_cached_tokens(inner) for inner in cache.values() if _counts_tokens(inner))


def _counts_tokens(cache: Any) -> bool:
    """Return whether a part of a cache counts tokens. A cross-attention cache does not."""
    return isinstance(cache, Mapping) and (NUM_TOKENS in cache or any(map(_counts_tokens, cache.values())))


def check_prompt_start(cache: Cache, mask: Tensor | None) -> Tensor | None:
    """Check that a prompt can start in each row: the cache holds no tokens, and padding is on the right.

    Args:
        cache: result of `init_cache`.
        mask: bool (B or 1, T), False for padding, or None.

    Returns:
        None if the values can be read, otherwise bool (B,), True for rows in which a prompt can start.

    Raises:
        ValueError: if the values can be read and a prompt cannot start in some row.
    """
    is_empty = cache[NUM_TOKENS] == 0
    known = concrete_values(is_empty)
    if known is not None and not known.all():
        raise ValueError(
            "`cache` must hold no tokens before a prompt: `prefill` starts a sequence, `decode` continues it. "
            f"Received: a cache of {concrete_values(cache[NUM_TOKENS]).tolist()} tokens per row."  # type: ignore[union-attr]
        )
    if mask is None or mask.shape[1] == 1:
        return None if known is not None else is_empty
    is_right = ops.all(ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:])), axis=1)
    known_right = concrete_values(is_right)
    if known_right is not None and not known_right.all():
        raise ValueError(
            "`mask` must have padding on the right: in each row True for all tokens, then False. Received: False "
            f"before True in rows {np.flatnonzero(~known_right).tolist()}."
        )
    if known is not None and known_right is not None:
        return None
    return ops.logical_and(is_empty, is_right)


def next_positions(cache: Cache, index: Tensor) -> Tensor:
    """Return the positions of the next tokens, int32 (B,), -1 where `index` is not the number of tokens in the cache.

    Raises:
        ValueError: if values can be read and a nonnegative `index` is not the number of tokens in the cache.
    """
    num_tokens = cache[NUM_TOKENS]
    positions, expected = concrete_values(index), concrete_values(num_tokens)
    if positions is not None and expected is not None and np.any((positions >= 0) & (positions != expected)):
        raise ValueError(
            "`index` must be the number of tokens in the cache: each token of a row is decoded once, in order. "
            f"Received: index={positions.tolist()}, a cache of {expected.tolist()} tokens per row."
        )
    return ops.where(index == num_tokens, index, -1)


def check_space(name: str, plans: Iterable[HeadPlan], cache: Cache, length: int | None) -> None:
    """Raise a `ValueError` if a cache is too small for a number of positions.

    Args:
        name: name of the checked argument.
        plans: head plans of a causal call.
        cache: result of `init_cache`.
        length: number of positions from the first token on. None: unknown.
    """
    enough = True if length is None else concrete_values(has_room(plans, cache, length))
    if enough is not None and not np.all(enough):
        raise ValueError(
            f"`{name}` must be less than the `max_length` of the cache. Create a larger cache by `init_cache`. "
            f"Received: {length} positions, which the cache cannot hold."
        )


def warn_once(layer: keras.layers.Layer, reason: str) -> None:
    """Warn once per layer that its selection is not causal.

    Args:
        layer: an attention layer whose pattern has `causal_selection=False`.
        reason: the second half of the sentence.
    """
    if not getattr(layer, "_has_warned", False):
        layer._has_warned = True
        warnings.warn(f"{describe_pattern(layer, 'causal_selection', False)} {reason}", stacklevel=4)
