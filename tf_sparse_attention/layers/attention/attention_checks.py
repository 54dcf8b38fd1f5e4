"""Checks of the arguments and shapes that all attention layers have."""

import inspect
import numbers
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.head_settings import HeadSettings
from tf_sparse_attention.layers.parts.integers import values_of
from tf_sparse_attention.patterns.engine.plan import HeadPlan
from tf_sparse_attention.patterns.engine.slots import Cache, entry_name, holds
from tf_sparse_attention.types import Shape, Size, Tensor

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


def can_be_causal(layer: Any) -> bool:
    """Return whether an attention layer supports `use_causal_mask=True`."""
    return layer.pattern is not None and layer.pattern.can_be_causal


def name_with_leaf(layer: Any, flag: str, value: bool = True) -> str:
    """Return the class names of a layer and of the first primitive pattern whose attribute `flag` has a value."""
    leaves = [] if layer.pattern is None else layer.pattern.leaves()
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
        name = f"{name_with_leaf(layer, 'must_be_causal')}, which is for causal self-attention alone"
        if value is not None:
            raise ValueError(
                f"`value` and `key` must be None, or `query` itself, with {name}. Received: a value other than the "
                "query."
            )
        raise ValueError(f"`use_causal_mask` must be True with {name}. Received: use_causal_mask=False.")
    if value is not None and layer.share_qk:
        raise ValueError(
            "`value` and `key` must be None, or `query` itself, where queries serve as keys. Pass "
            f"share_qk=False to {type(layer).__name__}. Received: a value other than the query."
        )
    if causal and (pattern is None or not pattern.can_be_causal):
        raise ValueError(
            f"`use_causal_mask` must be False with {name_with_leaf(layer, 'can_be_causal', False)}, which cannot mask "
            "later positions. Use LocalAttention, StridedAttention, FixedAttention or RoutingAttention with "
            f"selection='nearest'. Received: use_causal_mask=True, pattern={pattern!r}."
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


def check_inputs(layer: Any, query: Tensor, value: Tensor | None = None, key: Tensor | None = None) -> None:
    """Raise a `ValueError` unless the shapes of inputs match each other and a built attention layer."""
    value = query if value is None else value
    check_shapes(query.shape, value.shape, value.shape if key is None else key.shape)
    sizes = layer.num_features, layer.value_dense.kernel.shape[0]
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


NUM_TOKENS = "num_tokens"  # an entry of a cache: the tokens of each row, int32 (B,), -1 where a prompt was wrong


def check_entries(cache: Any, names: Iterable[str]) -> None:
    """Raises a `ValueError` for what is no cache, and for that of a layer or model with other parts.

    Args:
        cache: what is to be checked.
        names: the entries that it needs.
    """
    if not isinstance(cache, Mapping):
        raise ValueError(
            "`cache` must be the dictionary of `init_cache`, or the second of the two that `prefill` and `decode` "
            f"return. Received: a {type(cache).__name__}."
        )
    if set(names) - set(cache):
        raise ValueError(
            "`cache` must be what `init_cache` of this layer or model made, or what became of it. "
            f"Received: entries {sorted(cache)}, where {sorted(set(names) - set(cache))} are missing."
        )


def check_pattern_entries(cache: Any, plans: Iterable[HeadPlan]) -> None:
    """Raises a `ValueError` for what is no cache of the pattern of some plans."""
    check_entries(cache, [entry_name(leaf) for plan in plans for leaf in plan.leaves])


def check_cache(x: Tensor, cache: Cache, plans: Iterable[HeadPlan]) -> None:
    """Raises a `ValueError` for a cache that is not of `plans`, or known to have another number of rows than `x`."""
    check_pattern_entries(cache, plans)
    check_entries(cache, [NUM_TOKENS])
    rows, kept = x.shape[0], {leaf.shape[0] for leaf in keras.tree.flatten(cache)}
    if rows is not None and kept - {None, rows}:
        raise ValueError(f"`x` must have the rows of `cache`. Received: {rows} rows, a cache of {max(kept)}.")


def check_source(name: str, sequence: Tensor, cache: Any) -> None:
    """Raises a `ValueError` for a sequence (B, S, D) known to be other than that of a cache of `init_cross_cache`."""
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
    """Raises a `ValueError` unless `index` is a number from 0 on, or one for each row of `x`, as far as known."""
    dtype = np.asarray(index).dtype if not hasattr(index, "dtype") else keras.backend.standardize_dtype(index.dtype)
    if "int" not in str(dtype):
        raise ValueError(f"`index` must be an integer, or integers, one for each row. Received: index={index!r}.")
    sizes, rows = tuple(index.shape if hasattr(index, "shape") else np.shape(index)), x.shape[0]
    if len(sizes) > 1 or (sizes and None not in (sizes[0], rows) and sizes[0] not in (1, rows)):
        raise ValueError(
            "`index` must be one position for all rows, or one for each. "
            f"Received: index of shape {sizes}, x of shape {tuple(x.shape)}."
        )
    if not ops.is_tensor(index) and np.min(index) < 0:
        raise ValueError(f"`index` must be the number of tokens in the cache, at least 0. Received: index={index}.")


def tokens_in(cache: Mapping[str, Any]) -> Tensor:
    """Return the tokens that a cache of a layer, block or model holds in each row, int32 (B,)."""
    if NUM_TOKENS in cache:
        return cache[NUM_TOKENS]
    return next(tokens_in(inner) for inner in cache.values() if _counts_tokens(inner))


def _counts_tokens(cache: Any) -> bool:
    """Return whether a part of a cache counts tokens; a cross-attention cache does not."""
    return isinstance(cache, Mapping) and (NUM_TOKENS in cache or any(map(_counts_tokens, cache.values())))


def check_prompt_start(cache: Cache, mask: Tensor | None) -> Tensor | None:
    """Check that a prompt can start in each row: the cache holds no tokens, and padding is on the right.

    Args:
        cache: of `init_cache`.
        mask: bool (B or 1, T), False for padding, or None.

    Returns:
        None where the values can be read, else bool (B,), whether a prompt can start in the row.

    Raises:
        ValueError: if it is known that a prompt cannot start in some row.
    """
    is_empty = cache[NUM_TOKENS] == 0
    known = values_of(is_empty)
    if known is not None and not known.all():
        raise ValueError(
            "`cache` must hold no tokens before a prompt: `prefill` starts a sequence, `decode` continues it. "
            f"Received: a cache of {values_of(cache[NUM_TOKENS]).tolist()} tokens per row."  # type: ignore[union-attr]
        )
    if mask is None or mask.shape[1] == 1:
        return None if known is not None else is_empty
    is_right = ops.all(ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:])), axis=1)
    known_right = values_of(is_right)
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
        ValueError: if a value of `index` that can be read is neither negative nor the number of tokens in the cache.
    """
    num_tokens = cache[NUM_TOKENS]
    positions, expected = values_of(index), values_of(num_tokens)
    if positions is not None and expected is not None and np.any((positions >= 0) & (positions != expected)):
        raise ValueError(
            "`index` must be the number of tokens in the cache: each token of a row is decoded once, in order. "
            f"Received: index={positions.tolist()}, a cache of {expected.tolist()} tokens per row."
        )
    return ops.where(index == num_tokens, index, -1)


def check_space(name: str, plans: Iterable[HeadPlan], cache: Cache, length: int | None) -> None:
    """Raises a `ValueError` if a cache is known to be too small for a number of positions.

    Args:
        name: the argument that brings so many, as the message names it.
        plans: of `plan_heads`, of the pattern of causal calls.
        cache: of `empty_cache`.
        length: positions from the first token on; None: not known.
    """
    enough = True if length is None else values_of(holds(plans, cache, length))
    if enough is not None and not np.all(enough):
        raise ValueError(
            f"`{name}` must stay below the `max_length` of the cache; make one by `init_cache` that is long enough. "
            f"Received: {length} positions, which the cache cannot hold."
        )


def warn_once(layer: keras.layers.Layer, reason: str) -> None:
    """Warn once per layer that its selection is not causal.

    Args:
        layer: an attention layer with `selection`.
        reason: the second half of the sentence.
    """
    if not getattr(layer, "_has_warned", False):
        layer._has_warned = True
        warnings.warn(f"{type(layer).__name__} with selection={layer.selection!r} {reason}", stacklevel=4)
