"""Balanced clusters of keys: clusters of equal size by recursive bisection."""

import functools

import numpy as np
from keras import ops

from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Tensor

NUM_POWER_STEPS = 12  # of the power method that finds a principal direction


def bisect_keys(keys: Tensor, cluster_size: int) -> Tensor:
    """Divide the keys of each segment into clusters of equal size, of keys that are near each other.

    Recursive bisection: the keys of a part are sorted by their projection onto the first principal direction and cut in
    half, until a part has `cluster_size` keys. A short power method finds the direction. Among equal projections, the
    earlier key comes first. Cost O(g H log(g / c)) per segment. No gradient.

    Args:
        keys: (..., g, H), segments of g keys. g must be c times a power of two.
        cluster_size: c.

    Returns:
        Int32 (..., g), a permutation of 0 .. g - 1. Each run of c numbers is a cluster.

    Example:
        >>> keys = ops.convert_to_tensor([[0.0, 0], [9, 0], [1, 0], [8, 0]])
        >>> bisect_keys(keys, 2).numpy().tolist()
        [0, 2, 3, 1]
    """
    *sizes, width, channels = shape(keys)
    parts = ops.reshape(ops.cast(ops.stop_gradient(keys), "float32"), (-1, width, channels))
    order = ops.broadcast_to(ops.arange(width, dtype="int32"), shape(parts)[:2])
    while width > cluster_size:
        centered = parts - ops.mean(parts, axis=1, keepdims=True)
        # Not orthogonal to any principal direction that real keys have.
        direction = ops.broadcast_to(1 + 0.01 * np.arange(channels, dtype="float32"), (shape(parts)[0], channels))
        direction = ops.fori_loop(0, NUM_POWER_STEPS, functools.partial(_step, centered), direction)
        ranks = ops.cast(ops.argsort(_project(centered, direction), axis=-1), "int32")
        width //= 2
        parts = ops.reshape(ops.take_along_axis(parts, ranks[..., None], axis=1), (-1, width, channels))
        order = ops.reshape(ops.take_along_axis(order, ranks, axis=1), (-1, width))
    return ops.reshape(order, (*sizes, shape(keys)[-2]))


def _step(centered: Tensor, number: Tensor, direction: Tensor) -> Tensor:
    """Apply one step of the power method to directions (P, H) of centered keys (P, w, H)."""
    direction = _project(ops.swapaxes(centered, 1, 2), _project(centered, direction))
    length = ops.sqrt(ops.sum(ops.square(direction), axis=-1, keepdims=True))
    return direction / ops.where(length > 0, length, 1)


def _project(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply matrices (P, a, b) by vectors (P, b)."""
    return ops.matmul(matrix, vector[..., None])[..., 0]
