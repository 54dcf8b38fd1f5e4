"""Hash bits of vectors, and k-means in Hamming space (Vyas et al. 2020, section 3.2)."""

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.blocks import matmul_last_axis, max_over, shape
from tf_sparse_attention.ops.gather import stable_order, take_numbers, take_rows
from tf_sparse_attention.ops.groups import best_group
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.types import Size, Tensor


def hash_bits(x: Tensor, planes: Tensor) -> Tensor:
    """Returns on which side of some planes vectors lie, bool (..., R).

    Args:
        x: tensor (..., H).
        planes: float (R, H + 1), the normal of each plane and its offset a: the bit is x . normal > a.
    """
    dtype = score_dtype(planes.dtype)
    normals, offsets = ops.cast(planes[:, :-1], dtype), ops.cast(planes[:, -1], dtype)
    return matmul_last_axis(ops.cast(x, dtype), ops.transpose(normals)) > offsets


def evenly_spaced_tokens(token_mask: Tensor, num_clusters: int, length: Size) -> Tensor:
    """Returns the positions that clusters start from: valid tokens, evenly spaced, int32 (B, C).

    A row's positions depend on its own tokens alone. Of fewer tokens than clusters some are taken more than once.

    Args:
        token_mask: bool (B, T), False for padding.
        num_clusters: C.
        length: T.
    """
    mask = ops.cast(token_mask, "int32")[:, None]
    order = stable_order(1 - mask)[0]  # valid tokens first, by position
    ranks = ops.arange(num_clusters, dtype="int32") * ops.sum(mask, axis=-1, keepdims=True) // num_clusters
    return take_numbers(order, ops.minimum(ranks, length - 1))[:, 0]


def hamming_clusters(
    bits: Tensor, num_clusters: int, num_iterations: int, starts: Tensor, token_mask: Tensor | None = None
) -> Tensor:
    """Returns the cluster of each token after k-means in Hamming space, int32 (B, N, T), C for padding.

    Tokens go to the nearest centroid, of equal ones to the lowest. A bit of a centroid is that of the majority of its
    members, 0 in a tie; a cluster without members keeps its centroid. All of `num_iterations` assign, all but the last
    move the centroids.

    Args:
        bits: bool (B, N, T, R).
        num_clusters: C; R C must be below 2^23.
        num_iterations: times tokens are assigned.
        starts: int32 (B, C), the positions of the tokens whose bits the centroids start with.
        token_mask: bool (B, T), False for padding; or None.
    """
    batch, heads, _, num_bits = shape(bits)
    signs = 2 * ops.cast(bits, "float32") - 1  # equal signs minus different ones is R - 2 (Hamming distance)
    centroids = take_rows(signs, ops.broadcast_to(starts[:, None], (batch, heads, num_clusters)))
    columns = ops.swapaxes(signs, -1, -2)  # clusters come before tokens below, so that this alone is ever transposed
    signs = ops.concatenate([signs, ops.ones_like(signs[..., :1])], axis=-1)  # the ones count the members
    counted = None if token_mask is None else token_mask[:, None, None]
    # All numbers are integers, so that the number of the cluster can be told from the largest sum itself, which is far
    # faster than argmax: the largest of C (signs . centroid) - cluster is that of the lowest cluster among equals.
    numbers = ops.arange(num_clusters, dtype="float32")[:, None]
    for iteration in range(num_iterations):
        alike = num_clusters * ops.matmul(centroids, columns) - numbers  # (B, N, C, T)
        highest = max_over(alike, axis=-2, keepdims=True)
        if iteration < num_iterations - 1:
            members = merge(alike == highest, counted)
            votes = ops.matmul(ops.cast(members, "float32"), signs)
            used = votes[..., -1:] > 0
            centroids = ops.where(used, ops.where(votes[..., :-1] > 0, 1.0, -1.0), centroids)
    # The remainder of minus the largest: R C is added to make it positive.
    clusters = ops.cast(num_bits * num_clusters - highest[..., 0, :], "int32") % num_clusters
    return clusters if token_mask is None else ops.where(token_mask[:, None], clusters, num_clusters)


def l2_normalize(x: Tensor) -> Tensor:
    """Returns vectors of length 1, in float32 (float64 for float64 inputs); zeros stay zeros."""
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))


def lsh_buckets(x: Tensor, rotations: Tensor) -> list[Tensor]:
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
