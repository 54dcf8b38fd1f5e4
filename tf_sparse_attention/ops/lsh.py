"""Hash buckets of vectors (Kitaev et al. 2020, "Reformer")."""

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.groups import best_group
from tf_sparse_attention.types import Tensor


def unit(x: Tensor) -> Tensor:
    """Returns vectors of length 1, in float32 (float64 for float64 inputs); zeros stay zeros."""
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))


def buckets(x: Tensor, rotations: Tensor) -> list[Tensor]:
    """Returns the bucket of each vector in each round: the axis it is nearest to after a rotation, or its opposite.

    A bucket depends on the direction of the vector alone.

    Args:
        x: tensor (B, N, T, H).
        rotations: float (R, N, H, K / 2), random; K buckets.

    Returns:
        List of R int32 tensors (B, N, T): argmax of [x P, -x P].
    """
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    found = []
    for rotation in ops.unstack(ops.cast(rotations, x.dtype), axis=0):
        turned = ops.einsum("BNTH,NHK->BNTK", x, rotation)
        found.append(best_group(ops.concatenate([turned, -turned], axis=-1)))
    return found
