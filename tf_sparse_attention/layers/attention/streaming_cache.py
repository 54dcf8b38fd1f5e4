"""Streaming decoding: bounded caches, and rotary positions counted inside the cache."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention.ops.positions import NoPosition, Rotary, StreamingRotary
from tf_sparse_attention.patterns.engine.head_plans import HeadPlan
from tf_sparse_attention.patterns.engine.kv_cache import UNROTATED, Cache, cache_policy
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Tensor

MAX_LENGTH = 2**30 - 1  # tokens: caches store int32 positions relative to -2^30


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


def mark_unrotated(layer: keras.layers.Layer, plans: Sequence[HeadPlan], cache: Cache, memory: Tensor | None) -> Cache:
    """Mark an empty cache as one that holds unrotated keys, which are rotated by their slots when read.

    Raises:
        ValueError: for a memory, or another position encoding or pattern.
    """
    if memory is not None:
        raise ValueError("`memory` must be None with `positions_in_cache`. Received: a memory.")
    if layer.position not in (None, "rotary"):
        raise ValueError(
            f"`positions_in_cache` must be False unless `position` is 'rotary' or None. Received: {layer.name} with "
            f"position={layer.position!r}."
        )
    cache_sizes(layer, plans)
    return {name: {**entry, UNROTATED: entry["position"][:, 0, :1]} for name, entry in cache.items()}


def cache_sizes(layer: keras.layers.Layer, plans: Sequence[HeadPlan]) -> tuple[int, int]:
    """Return the numbers of first and of last tokens that a cache keeps.

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


def check_prompt(layer: keras.layers.Layer, plans: Sequence[HeadPlan], length: int | None) -> None:
    """Raise a `ValueError` unless the cache can hold the whole prompt."""
    first, window = cache_sizes(layer, plans)
    if length is None or length > first + window:
        raise ValueError(
            f"`x` must be at most {first + window} tokens, the size of the cache of {layer.name}, with "
            f"`positions_in_cache`. Decode further tokens one by one. Received: {length} tokens."
        )


def position_in_cache(layer: keras.layers.Layer, plans: Sequence[HeadPlan], index: Tensor) -> NoPosition:
    """Return the position encoding of a token at `index` (B,) and of cached keys, counted inside the cache."""
    position = layer.position_encoding
    if not isinstance(position, Rotary):
        return position
    return StreamingRotary(position.settings, *cache_sizes(layer, plans), index)
