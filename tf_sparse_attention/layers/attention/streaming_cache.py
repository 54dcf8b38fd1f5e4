"""Streaming decoding: bounded caches, and rotary positions counted inside the cache.

With s first tokens and a window of w, positions in the cache (Xiao et al. 2024, section 3.2) keep the distances in the
window. Only the distance to the first tokens changes: for scores with the first tokens, a query at position i is
rotated to min(i, s + w - 1).
"""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention.patterns.engine.head_plans import HeadPlan
from tf_sparse_attention.patterns.engine.kv_cache import cache_policy
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


def check_streaming(layer: keras.layers.Layer, plans: Sequence[HeadPlan], memory: Tensor | None) -> None:
    """Raise a `ValueError` if a layer cannot decode with positions in the cache."""
    if memory is not None:
        raise ValueError("`memory` must be None with `positions_in_cache`. Received: a memory.")
    if layer.position not in (None, "rotary"):
        raise ValueError(
            f"`positions_in_cache` must be False unless `position` is 'rotary' or None. Received: {layer.name} with "
            f"position={layer.position!r}."
        )
    cache_sizes(layer, plans)


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
