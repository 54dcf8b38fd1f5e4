"""Checks of what decoding steps get: caches, positions, and the space there is."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.layers.parts.integers import values_of
from tf_sparse_attention.patterns.engine.plan import HeadPlan
from tf_sparse_attention.patterns.engine.slots import Cache, entry_name, holds
from tf_sparse_attention.types import Size, Tensor

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
