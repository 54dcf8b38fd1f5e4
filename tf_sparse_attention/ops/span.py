"""Adaptive span (Sukhbaatar et al. 2019, "Adaptive attention span"): a soft end of the window, learned by each head."""

import dataclasses
import math
from typing import Self

from keras import ops

from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class Span:
    """How far each head sees: all of a window up to a learned distance, and ever less over a ramp behind it.

    A key at distance d counts m(d) = clip((z L - (d - first)) / R + 1, 0, 1) times in the softmax, so that it is seen
    for d < z L + R + first.

    Args:
        fraction: float (N,), z of each head, in [0, 1].
        window: L, positions that z = 1 reaches.
        ramp: R, positions over which the span ends.
        first: distance of the nearest key, 0 where a query sees itself and 1 where it does not.
    """

    fraction: Tensor
    window: int
    ramp: int
    first: int = 0

    def slice_heads(self, heads: slice) -> Self:
        """Returns the span of some of the heads, a slice of theirs."""
        return dataclasses.replace(self, fraction=self.fraction[heads])

    def factor(self, distances: Distances) -> Tensor:
        """Returns the share of each key slot that counts, (N, 1, t, s), or (B, N, 1, t, s) where rows differ.

        Args:
            distances: a `positions.Distances` with `offsets`, or with `tokens` (B, N or 1, 1, t, s).
        """
        if distances.offsets is not None:
            distance = ops.convert_to_tensor(abs(distances.offsets), self.fraction.dtype)
            return self._share(distance)[:, None]
        return self._share(ops.cast(ops.abs(distances.tokens), self.fraction.dtype))

    def seen(self, query_length: Size, key_length: Size, num_memory: int = 0) -> Tensor:
        """Returns the dense mask of the keys that count at all, bool (N, T, S), the first key `num_memory` before."""
        at_queries, at_keys = (ops.arange(length, dtype=self.fraction.dtype) for length in (query_length, key_length))
        return self._share(ops.abs(at_queries[:, None] + num_memory - at_keys[None, :])) > 0

    def _share(self, distance):
        """Returns m of distances (t, s) for each head, (N, t, s); of distances (B, N or 1, 1, t, s) with all axes."""
        reach = ops.reshape(self.fraction, (-1, *[1] * max(len(distance.shape) - 2, 2))) * self.window
        return closed_clip((reach - (distance - self.first)) / self.ramp + 1)


def closed_clip(x: Tensor) -> Tensor:
    """Returns `x` between 0 and 1, with a gradient of 1 at 0 and 1 too, where a span begins and must not get stuck."""
    inside = ops.logical_and(x >= 0, x <= 1)
    return ops.where(inside, x, ops.stop_gradient(ops.clip(x, 0, 1)))


def needed_window(fraction: float, window: int, ramp: int, num_sizes: int = 16) -> int:
    """Returns the least positions that a window must have to hold the spans of all heads.

    Args:
        fraction: the largest z, a Python number.
        window: L.
        ramp: R.
        num_sizes: the result is one of so many sizes, multiples of L / `num_sizes`, so that a program is made anew
            rarely.

    Returns:
        Integer from 1 to L.
    """
    reached = math.ceil(fraction * window) + ramp  # keys with d - first < z L + R
    step = -(-window // num_sizes)
    return min(-(-max(reached, 1) // step) * step, window)
