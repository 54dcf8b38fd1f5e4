"""The largest numbers of an axis."""

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import are_known
from tf_sparse_attention.types import Tensor


def largest(x: Tensor, k: int, sorted: bool = False) -> tuple[Tensor, Tensor]:
    """Find the k largest numbers of the last axis, of equal ones the earlier.

    The result of `keras.ops.top_k`. A program of JAX with unknown sizes is exported: TensorFlow cannot load JAX's
    operation, so the program sorts instead, which takes several times as long. There -0 equals 0, and NaN comes last.

    Args:
        x: numbers (..., T); integers must exceed the smallest value of their dtype.
        k: at most T.
        sorted: whether the largest must come first. Default False: any order.

    Returns:
        Pair of the numbers (..., k) and their int32 positions (..., k).
    """
    if keras.backend.backend() != "jax" or are_known(*x.shape):
        found, positions = ops.top_k(x, k, sorted=sorted)
        return found, ops.cast(positions, "int32")
    positions = ops.cast(ops.argsort(-x, axis=-1)[..., :k], "int32")
    return ops.take_along_axis(x, positions, axis=-1), positions
