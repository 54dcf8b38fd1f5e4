"""Checks of the arguments, inputs and caches of attention layers."""

import functools
import inspect
import numbers
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.layers.parts.head_settings import HeadSettings
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan
from tf_sparse_attention.patterns.engine.kv_cache import (
    LONGEST,
    NUM_TOKENS,
    Cache,
    cache_policy,
    entry_name,
    has_memory,
    has_room,
)
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.pattern import primitives
from tf_sparse_attention.patterns.selection import NewTokens
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Shape, Size, Tensor

MAX_LENGTH = 2**30 - 1  # tokens: caches store int32 positions relative to -2^30
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
    for (name, given), size in zip(shapes.items(), sizes, strict=True):
        if given[2] != size:
            raise ValueError(
                f"`{name}` must have {size} features, as {layer} was built. Received: {name} of shape {tuple(given)}."
            )


def _check_batch(query_shape, value_shape, key_shape):
    if len({sizes[0] for sizes in (query_shape, value_shape, key_shape)} - {None}) > 1:
        raise ValueError(
            "`query`, `value` and `key` must have the same batch size. Received: query of shape "
            f"{tuple(query_shape)}, value of shape {tuple(value_shape)}, key of shape {tuple(key_shape)}."
        )


def check_entries(cache: Any, names: Iterable[str], allowed: Iterable[str] = ()) -> None:
    """Raise a `ValueError` unless a cache is a dictionary with some entries, and no other parts.

    Args:
        cache: a value passed as cache.
        names: names of the required entries.
        allowed: names of other parts that the cache may have.
    """
    if not isinstance(cache, Mapping):
        raise ValueError(
            f"`cache` must be a dictionary, the result of `init_cache` or `extend`. Received: a {type(cache).__name__}."
        )
    wanted, parts = set(names), {name for name, entry in cache.items() if isinstance(entry, Mapping)}
    if wanted - set(cache) or parts - wanted - set(allowed):
        raise ValueError(
            "`cache` must be the result of `init_cache` or `extend` of this layer or model, with the entries "
            f"{sorted(wanted)}. Received: {sorted(cache)}."
        )


def check_pattern_entries(cache: Any, plans: Iterable[HeadPlan], required: Iterable[str] = ()) -> None:
    """Raise a `ValueError` unless a cache has the entries of some head plans and the `required` entries."""
    further = [name for name in cache if not name.startswith("part_")] if isinstance(cache, Mapping) else []
    check_entries(cache, [entry_name(leaf) for plan in plans for leaf in plan.leaves] + [*required], allowed=further)


def check_new_tokens(name: str, x: Tensor, cache: Mapping[str, Any], index: Size | None = None) -> None:
    """Raise a `ValueError` unless `x` has tokens and the batch size of a cache, and `index` fits; see `check_index`."""
    rows, kept = x.shape[0], {leaf.shape[0] for leaf in keras.tree.flatten(cache)}
    if rows is not None and kept - {None, rows}:
        raise ValueError(
            f"`{name}` must have the batch size of `cache`. Received: {rows} rows, a cache of {max(kept)} rows."
        )
    if x.shape[1] == 0:
        raise ValueError(f"`{name}` must have at least one token. Received: {name} of shape {tuple(x.shape)}.")
    if index is not None:
        check_index(x, index)


def check_index(x: Tensor, index: Size) -> None:
    """Raise a `ValueError` unless `index` is a nonnegative integer, or one integer per row of `x`."""
    check_numbers("index", index, x.shape[0])
    if not ops.is_tensor(index) and np.min(index) < 0:
        raise ValueError(f"`index` must be the number of tokens in the cache, at least 0. Received: index={index}.")


def check_numbers(name: str, numbers: Size, rows: int | None) -> None:
    """Raise a `ValueError` unless `numbers` is an integer, or one integer per row."""
    dtype = np.asarray(numbers).dtype if not hasattr(numbers, "dtype") else numbers.dtype
    dtype = str(dtype) if isinstance(dtype, np.dtype) else keras.backend.standardize_dtype(dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be an integer, or one integer per row. Received: {name}={numbers!r}.")
    sizes = tuple(numbers.shape if hasattr(numbers, "shape") else np.shape(numbers))
    if len(sizes) > 1 or (sizes and None not in (sizes[0], rows) and sizes[0] not in (1, rows)):
        raise ValueError(
            f"`{name}` must be one number for all rows, or one number per row. "
            f"Received: {name} of shape {sizes}, {rows} rows."
        )


def num_cached_tokens(cache: Mapping[str, Any]) -> Tensor:
    """Return the number of tokens per row in the cache of a layer, block or model, int32 (B,).

    Args:
        cache: result of `init_cache` or `extend`. In compiled programs, -1 marks rows after an invalid `extend` or
            `rewind`.

    Raises:
        ValueError: if `cache` is no such result.

    Example:
        >>> counts = num_cached_tokens(model.init_cache(batch_size=2, max_length=100))
        >>> [int(count) for count in counts]
        [0, 0]
    """
    if not _counts_tokens(cache):
        raise ValueError(f"`cache` must be the result of `init_cache` or `extend`. Received: a {type(cache).__name__}.")
    if NUM_TOKENS in cache:
        return cache[NUM_TOKENS]
    return next(num_cached_tokens(inner) for inner in cache.values() if _counts_tokens(inner))


def _counts_tokens(cache: Any) -> bool:
    """Return whether a part of a cache counts tokens. A cross-attention cache does not."""
    return isinstance(cache, Mapping) and (NUM_TOKENS in cache or any(map(_counts_tokens, cache.values())))


class Extension(NamedTuple):
    """New tokens of a cache, after all checks.

    Attributes:
        tokens: the `NewTokens`.
        is_valid: bool (B,), False for rows that get NaN. None: all rows are known to be valid.
        num_tokens: int32 (B,), number of tokens in the cache after the new ones.
        is_first: whether the cache is known to be empty in all rows.
    """

    tokens: NewTokens
    is_valid: Tensor | None
    num_tokens: Tensor
    is_first: bool


def check_cache(layer: Any, plans: Sequence[HeadPlan], cache: Any) -> None:
    """Raise a `ValueError` unless a cache has the entries, sizes and dtype of an attention layer."""
    check_pattern_entries(cache, plans, required=[NUM_TOKENS])
    if not all(map(ops.is_tensor, keras.tree.flatten(cache))):
        raise ValueError(
            "`cache` must hold tensors of the backend. Convert NumPy arrays by "
            "`keras.tree.map_structure(keras.ops.convert_to_tensor, cache)`. Received: other values."
        )
    for plan in plans:
        for leaf in plan.leaves:
            entry = cache[entry_name(leaf)]
            found = [(entry[name].shape[1], entry[name].shape[3]) for name in ("key", "value")]
            expected = [(len(plan.key_heads), size) for size in (layer.key_dim, layer.value_dim)]
            dtype = keras.backend.standardize_dtype(entry["key"].dtype)
            if found != expected or dtype not in (layer.compute_dtype, "int8"):
                raise ValueError(
                    f"`cache` must be the result of `init_cache` or `extend` of {layer.name}, with heads and channels "
                    f"{expected} of keys and values in {layer.compute_dtype}. Received: {found} in {dtype}."
                )


def check_extension(
    layer: Any,
    plans: Sequence[HeadPlan],
    cache: Cache,
    x: Tensor,
    mask: Tensor | None = None,
    index: Size | None = None,
    num_kept: Size | None = None,
) -> Extension:
    """Check the new tokens of a cache.

    Args:
        layer: the attention layer.
        plans: head plans of a causal call.
        cache: result of `init_cache`.
        x: the new tokens, (B, q, D).
        mask: bool (B or 1, q), False for padding, or None.
        index: int32 () or (B,), the number of tokens in the cache. None: not checked.
        num_kept: maximum number of leading tokens per row to add. None: all.

    Raises:
        ValueError: in eager mode, if padding is not on the right, `index` is not the number of tokens in the
            cache, or the cache cannot hold the tokens.
    """
    check_cache(layer, plans, cache)
    check_new_tokens("x", x, cache, index)
    batch, length = shape(x)[:2]
    held: Any = cache[NUM_TOKENS]
    start = held
    if index is not None:
        start = _checked_start(held, ops.broadcast_to(ops.cast(index, "int32"), (batch,)))
    known = concrete_values(start)
    counts = ops.full((batch,), length, dtype="int32")
    is_right = is_right_padded(mask)
    if mask is not None:
        counts = ops.sum(ops.cast(ops.broadcast_to(mask, (batch, length)), "int32"), axis=-1)
    if num_kept is not None:
        check_numbers("num_kept", num_kept, x.shape[0])
        counts = ops.minimum(counts, ops.maximum(ops.cast(num_kept, "int32"), 0))
    known_counts = concrete_values(counts)
    has_space = has_room(plans, cache, ops.maximum(start, 0) + counts)
    if known is not None and known_counts is not None and not np.all(concrete_values(has_space)):
        raise ValueError(
            "`x` must fit into the cache. Create it with a larger `max_length`, unless it is the cache of another "
            f"layer. Received: {known_counts.tolist()} new tokens per row after {known.tolist()}."
        )
    fits = merge(is_right, None if has_space is True else has_space)
    is_valid = merge(start >= 0, fits)
    num_tokens = held if fits is None else ops.where(merge(start >= 0, ops.logical_not(fits)), -1, held)
    counts = ops.where(is_valid, counts, 0)
    positions, exists = start[:, None], (counts > 0)[:, None]
    if x.shape[1] != 1:
        number = ops.arange(length, dtype="int32")
        positions, exists = positions + number, number < counts[:, None]
    known_index = known if index is None or ops.is_tensor(index) else np.asarray(index)
    is_first = known_index is not None and not np.any(known_index) and x.shape[1] != 1 and not has_memory(cache)
    all_known = known is not None and np.all(known >= 0)
    tokens = NewTokens(positions, exists, counts)
    return Extension(tokens, None if all_known else is_valid, num_tokens + counts, is_first)


def check_rewind(layer: Any, cache: Cache, lengths: Size) -> tuple[Tensor, Tensor]:
    """Check the number of tokens to keep in a cache.

    Args:
        layer: an attention layer.
        cache: its cache.
        lengths: int32 () or (B,).

    Returns:
        Pair of int32 (B,): the number of tokens to keep, and "num_tokens" afterwards, -1 in rows that cannot be
        rewound.

    Raises:
        ValueError: in eager mode, if `lengths` is out of range, or overwritten tokens are needed.
    """
    held: Any = cache[NUM_TOKENS]
    longest: Any = cache.get(LONGEST, held)
    check_numbers("lengths", lengths, held.shape[0])
    lengths = ops.broadcast_to(ops.cast(lengths, "int32"), (shape(held)[0],))
    limits = [longest - count for count in layer.removable_tokens(cache, longest)]
    least = functools.reduce(ops.maximum, limits, ops.zeros_like(held))
    is_valid = merge(lengths >= least, lengths <= held)
    known = concrete_values(ops.logical_or(is_valid, held < 0))  # invalid rows stay invalid
    if known is not None and not np.all(known):
        raise ValueError(
            "`lengths` must be between the fewest tokens that the cache can restore, see `init_cache(rewind=n)`, and "
            f"the tokens that it holds. Received: lengths={concrete_values(lengths).tolist()}, "  # type: ignore[union-attr]
            f"from {concrete_values(least).tolist()} to {concrete_values(held).tolist()} allowed."  # type: ignore[union-attr]
        )
    lengths = ops.where(is_valid, lengths, held)
    return lengths, ops.where(is_valid, lengths, -1)


def is_right_padded(mask: Tensor | None) -> Tensor | None:
    """Return whether each row has padding only on the right, bool (B,); None if this is known for all rows.

    Raises:
        ValueError: in eager mode, if padding is not on the right.
    """
    if mask is None or mask.shape[1] == 1:
        return None
    is_right = ops.all(ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:])), axis=1)
    known = concrete_values(is_right)
    if known is not None and not known.all():
        raise ValueError(
            "`mask` must have padding on the right: in each row True for all tokens, then False. Move padding to the "
            f"right. Received: False before True in rows {np.flatnonzero(~known).tolist()}."
        )
    return is_right if known is None else None


def _checked_start(num_tokens: Tensor, index: Tensor) -> Tensor:
    """Return the positions of the first new tokens, int32 (B,), -1 where `index` is not the number of cached tokens.

    Raises:
        ValueError: in eager mode, if a nonnegative `index` is not the number of tokens in the cache.
    """
    positions, expected = concrete_values(index), concrete_values(num_tokens)
    if positions is not None and expected is not None and np.any((positions >= 0) & (positions != expected)):
        raise ValueError(
            "`index` must be the number of tokens in the cache: each token of a row is added once, in order. "
            f"Received: index={positions.tolist()}, a cache of {expected.tolist()} tokens per row."
        )
    return ops.where(index == num_tokens, index, -1)


def warn_once(layer: keras.layers.Layer, reason: str) -> None:
    """Warn once per layer that its selection is not causal.

    Args:
        layer: an attention layer whose pattern has `causal_selection=False`.
        reason: the second half of the sentence.
    """
    if not getattr(layer, "_has_warned", False):
        layer._has_warned = True
        warnings.warn(f"{describe_pattern(layer, 'causal_selection', False)} {reason}", stacklevel=4)


def unbounded_length(layer: keras.layers.Layer, plans: Sequence[HeadPlan]) -> int:
    """Return the largest possible length of a sequence, for a pattern with a bounded cache.

    Raises:
        ValueError: if the cache of a part of the pattern grows with the sequence.
    """
    for plan in plans:
        for leaf in plan.leaves:
            if not cache_policy(leaf).is_bounded:
                raise ValueError(
                    f"`max_length` must be given: {leaf.pattern} in {layer.path or layer.name} has an unbounded cache. "
                    "Received: max_length=None."
                )
    return MAX_LENGTH


def check_streaming(layer: keras.layers.Layer, plans: Sequence[HeadPlan], memory: Tensor | None) -> None:
    """Raise a `ValueError` if a layer cannot decode with positions in the cache."""
    if memory is not None:
        raise ValueError("`memory` must be None with `positions_in_cache`. Received: a memory.")
    if layer.position not in (None, "rotary"):
        raise ValueError(
            f"`positions_in_cache` must be False unless `position` is 'rotary' or None. Received: {layer.name} with "
            f"position={layer.position!r}."
        )
    streaming_sizes(layer, plans)


def streaming_sizes(layer: keras.layers.Layer, plans: Sequence[HeadPlan]) -> tuple[int, int]:
    """Return the numbers of first and of last tokens that a streaming cache keeps: s and w.

    Rotary positions counted in the cache (Xiao et al. 2024, section 3.2) keep the distances in the window. Only the
    distance to the first tokens changes: for scores with the first tokens, a query at position i is rotated to
    min(i, s + w - 1).

    Raises:
        ValueError: unless the pattern is a window, optionally with first tokens, and the same for all heads.
    """
    found: set[Any] = set()
    for plan in plans:
        patterns = [leaf.pattern for leaf in plan.leaves]
        first = [pattern.count for pattern in patterns if type(pattern) is First]
        windows = [pattern.size for pattern in patterns if type(pattern) is Window]
        found.add((sum(first), *windows) if len(first) + len(windows) == len(patterns) and len(first) < 2 else None)
    sizes = found.pop()
    if found or sizes is None or len(sizes) != 2:
        raise ValueError(
            "`positions_in_cache` must be False unless the pattern is `Window(w)` or `Window(w) | First(n)`, the same "
            f"for all heads. Received: {layer.name} with {layer.pattern}."
        )
    return sizes
