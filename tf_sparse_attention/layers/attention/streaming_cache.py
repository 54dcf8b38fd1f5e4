"""Decoding without an end: caches that never grow, and positions that are counted inside of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tf_sparse_attention.ops.positions import NoPosition, Rotary, StreamingRotary
from tf_sparse_attention.patterns.engine.plan import HeadPlan
from tf_sparse_attention.patterns.engine.slots import Cache, cache_policy
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Size, Tensor

ENDLESS = 2**30 - 1  # tokens: positions in a cache are kept above -2^30 as int32
UNROTATED = "unturned"  # an entry of a cache whose keys positions have not turned


def cache_length(layer: keras.layers.Layer, plans: Sequence[HeadPlan], max_length: Size | None) -> Size:
    """Returns the `max_length` of a cache, the largest there is for None.

    Raises:
        ValueError: for None if a part of the pattern keeps more the longer a sequence is.
    """
    if max_length is not None:
        return max_length
    for plan in plans:
        for leaf in plan.leaves:
            if not cache_policy(leaf).is_bounded:
                raise ValueError(
                    f"`max_length` must be given: {leaf.pattern} in {layer.path or layer.name} keeps more the longer a "
                    "sequence is. Received: max_length=None."
                )
    return ENDLESS


def mark_unrotated(layer: keras.layers.Layer, plans: Sequence[HeadPlan], cache: Cache, memory: Tensor | None) -> Cache:
    """Returns an empty cache whose keys are to be turned where they are read, by their place in it.

    Raises:
        ValueError: for positions or a pattern for which there are no such places, and for a memory.
    """
    if memory is not None:
        raise ValueError("`memory` must be None with `positions_in_cache`. Received: a memory.")
    if layer.position not in (None, "rotary"):
        raise ValueError(
            f"`positions_in_cache` must be False unless `position` is 'rotary' or None. Received: {layer.name} with "
            f"position={layer.position!r}."
        )
    sizes_of_cache(layer, plans)
    return {name: {**entry, UNROTATED: entry["position"][:, 0, :1]} for name, entry in cache.items()}


def sizes_of_cache(layer: keras.layers.Layer, plans: Sequence[HeadPlan]) -> tuple[int, int]:
    """Returns how many first tokens and how many last ones a cache keeps.

    Raises:
        ValueError: for a pattern that is no window, perhaps with first tokens, the same for all heads.
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


def is_unrotated(cache: Cache) -> bool:
    """Returns whether keys are turned where they are read."""
    return any(UNROTATED in entry for entry in cache.values() if isinstance(entry, Mapping))


def check_prompt(layer: keras.layers.Layer, plans: Sequence[HeadPlan], length: int | None) -> None:
    """Raises a `ValueError` for a prompt that is not known to be in the cache as a whole, in order."""
    first, window = sizes_of_cache(layer, plans)
    if length is None or length > first + window:
        raise ValueError(
            f"`x` must be at most {first + window} tokens, as many as {layer.name} keeps, with `positions_in_cache`; "
            f"those after them are decoded one by one. Received: {length} tokens."
        )


def position_in_cache(layer: keras.layers.Layer, plans: Sequence[HeadPlan], index: Tensor) -> NoPosition:
    """Returns the positions of a token at `index`, int32 (B,), and of the keys of a cache, counted in it."""
    position = layer.position_encoding
    if not isinstance(position, Rotary):
        return position
    return StreamingRotary(position.settings, *sizes_of_cache(layer, plans), index)
