"""Adaptive attention span (Sukhbaatar et al. 2019): a learned window per head with a soft end."""

import dataclasses
import math
from typing import Self

from keras import ops

from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class Span:
    """Soft mask by distance, with a learned reach per head.

    A key at distance d has the factor m(d) = clip((z L - (d - first)) / R + 1, 0, 1) in the softmax. It is positive for
    d < z L + R + first.

    Args:
        fraction: float (N,), z of each head, in [0, 1].
        window: L, the reach for z = 1, in positions.
        ramp: R, length of the soft end, in positions.
        first: distance of the nearest key: 0 if a query may attend to itself, else 1.
    """

    fraction: Tensor
    window: int
    ramp: int
    first: int = 0

    def slice_heads(self, heads: slice) -> Self:
        """Return the span of a slice of the heads."""
        return dataclasses.replace(self, fraction=self.fraction[heads])

    def factor(self, distances: Distances) -> Tensor:
        """Return the factor of each key slot, (N, 1, t, s), or (B, N, 1, t, s) if batch rows differ.

        Args:
            distances: a `positions.Distances` with `offsets`, or with `tokens` (B, N or 1, 1, t, s).
        """
        if distances.offsets is not None:
            distance = ops.convert_to_tensor(abs(distances.offsets), self.fraction.dtype)
            return self._factor(distance)[:, None]
        return self._factor(ops.cast(ops.abs(distances.tokens), self.fraction.dtype))

    def dense_mask(self, query_length: Size, key_length: Size, num_memory: int = 0) -> Tensor:
        """Return the dense mask m > 0, bool (N, T, S); the first `num_memory` keys precede query 0."""
        queries, keys = (ops.arange(length, dtype=self.fraction.dtype) for length in (query_length, key_length))
        return self._factor(ops.abs(queries[:, None] + num_memory - keys[None, :])) > 0

    def _factor(self, distance):
        """Return m for each head: distances (t, s) to (N, t, s), distances (B, N or 1, 1, t, s) to (B, N, 1, t, s)."""
        reach = ops.reshape(self.fraction, (-1, *[1] * max(len(distance.shape) - 2, 2))) * self.window
        return closed_clip((reach - (distance - self.first)) / self.ramp + 1)


def closed_clip(x: Tensor) -> Tensor:
    """Clip `x` to [0, 1], with a gradient of 1 at both ends, so that a span that starts there can learn."""
    inside = ops.logical_and(x >= 0, x <= 1)
    return ops.where(inside, x, ops.stop_gradient(ops.clip(x, 0, 1)))


def needed_window(fraction: float, window: int, ramp: int, num_sizes: int = 16) -> int:
    """Return the smallest window that contains the spans of all heads, in positions.

    Args:
        fraction: the largest z, a Python number.
        window: L.
        ramp: R.
        num_sizes: number of possible results, multiples of L / `num_sizes`. Few sizes mean few recompilations.

    Returns:
        Integer from 1 to L.
    """
    reach = math.ceil(fraction * window) + ramp  # keys with d - first < z L + R
    step = -(-window // num_sizes)
    return min(-(-max(reach, 1) // step) * step, window)
