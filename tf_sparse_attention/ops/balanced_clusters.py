"""Balanced clusters of keys: clusters of equal size by recursive bisection."""

import numpy as np
from keras import ops

from tf_sparse_attention.ops.gather import take_numbers, take_rows
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Tensor

NUM_SQUARINGS = 4  # of the matrix of products: 16 steps of the power method


def bisect_keys(keys: Tensor, cluster_size: int) -> Tensor:
    """Divide the keys of each segment into clusters of equal size, of keys that are near each other.

    Recursive bisection: the keys of a part are sorted by their projection onto the first principal direction and cut in
    half, until a part has `cluster_size` keys. A short power method finds the direction. Keys of equal projections stay
    in their order. Cost O(g H min(g, H) log(g / c)) per segment. No gradient.

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
    *sizes, segment, channels = shape(keys)
    keys = ops.reshape(ops.cast(ops.stop_gradient(keys), "float32"), (-1, 1, segment, channels))
    order = ops.broadcast_to(ops.arange(segment, dtype="int32"), shape(keys)[:3])
    width = segment
    while width > cluster_size:
        parts = ops.reshape(keys if width == segment else take_rows(keys, order), (-1, width, channels))
        at = ops.cast(ops.argsort(_project(parts), axis=-1), "int32")
        order = take_numbers(ops.reshape(order, (-1, 1, width)), at[:, None])
        order = ops.reshape(order, shape(keys)[:3])
        width //= 2
    return ops.reshape(order, (*sizes, segment))


def _project(parts: Tensor) -> Tensor:
    """Project the keys (P, w, H) of each part onto its first principal direction, (P, w)."""
    centered = parts - ops.mean(parts, axis=1, keepdims=True)
    transposed = ops.swapaxes(centered, 1, 2)
    _, width, channels = shape(parts)
    # Not orthogonal to any principal direction that real keys have.
    start = (1 + 0.01 * np.arange(channels, dtype="float32"))[:, None]
    is_wide = channels < width
    products = ops.matmul(transposed, centered) if is_wide else ops.matmul(centered, transposed)
    for _ in range(NUM_SQUARINGS):
        largest = ops.max(ops.abs(products), axis=(1, 2), keepdims=True)
        products = products / ops.where(largest > 0, largest, 1)
        products = ops.matmul(products, products)
    vector = ops.matmul(products, start if is_wide else ops.matmul(centered, start))
    return ops.matmul(centered, vector)[..., 0] if is_wide else vector[..., 0]
