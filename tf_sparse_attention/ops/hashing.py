"""Hashes of vectors by random projections: LSH buckets (Reformer), and k-means of hash bits (clustered attention)."""

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.gather import stable_order, take_numbers, take_rows
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.shapes import argmax_last_axis, matmul_last_axis, max_over, shape
from tf_sparse_attention.types import Size, Tensor


def hash_bits(x: Tensor, planes: Tensor) -> Tensor:
    """Return the sides of R planes on which vectors lie, bool (..., R) (Vyas et al. 2020, section 3.2).

    Args:
        x: tensor (..., H).
        planes: float (R, H + 1), the normal and the offset a of each plane. The bit is x . normal > a.
    """
    dtype = score_dtype(planes.dtype)
    normals, offsets = ops.cast(planes[:, :-1], dtype), ops.cast(planes[:, -1], dtype)
    return matmul_last_axis(ops.cast(x, dtype), ops.transpose(normals)) > offsets


def evenly_spaced_tokens(token_mask: Tensor, num_clusters: int, length: Size) -> Tensor:
    """Return evenly spaced positions of unpadded tokens, the initial centroids of clusters, int32 (B, C).

    The positions of a row depend only on that row. Positions repeat if a row has fewer tokens than clusters.

    Args:
        token_mask: bool (B, T), False for padding.
        num_clusters: C.
        length: T.
    """
    mask = ops.cast(token_mask, "int32")[:, None]
    order = stable_order(1 - mask)[0]  # unpadded tokens first, by position
    ranks = ops.arange(num_clusters, dtype="int32") * ops.sum(mask, axis=-1, keepdims=True) // num_clusters
    return take_numbers(order, ops.minimum(ranks, length - 1))[:, 0]


def hamming_clusters(
    bits: Tensor, num_clusters: int, num_iterations: int, starts: Tensor, token_mask: Tensor | None = None
) -> Tensor:
    """Cluster hash bits by k-means in Hamming space (Vyas et al. 2020, section 3.2).

    Each token is assigned to the nearest centroid, the one of lowest index among equals. A bit of a centroid is the
    majority of its members, 0 for a tie. A cluster without members keeps its centroid. Every iteration assigns tokens,
    and all except the last update the centroids.

    Args:
        bits: bool (B, N, T, R).
        num_clusters: C. R C must be below 2^23.
        num_iterations: number of assignments.
        starts: int32 (B, C), positions of the tokens that are the initial centroids.
        token_mask: bool (B, T), False for padding; or None.

    Returns:
        int32 (B, N, T), the cluster of each token, C for padding.
    """
    batch, heads, _, num_bits = shape(bits)
    signs = 2 * ops.cast(bits, "float32") - 1  # products of signs: R - 2 (Hamming distance)
    centroids = take_rows(signs, ops.broadcast_to(starts[:, None], (batch, heads, num_clusters)))
    columns = ops.swapaxes(signs, -1, -2)  # only this is transposed: below, clusters come before tokens
    signs = ops.concatenate([signs, ops.ones_like(signs[..., :1])], axis=-1)  # the ones count members
    counted = None if token_mask is None else token_mask[:, None, None]
    # The maximum over clusters c of C (signs . centroid) - c is an integer that encodes the largest product and the
    # lowest c that reaches it. This is much faster than argmax.
    numbers = ops.arange(num_clusters, dtype="float32")[:, None]
    for iteration in range(num_iterations):
        scores = num_clusters * ops.matmul(centroids, columns) - numbers  # (B, N, C, T)
        highest = max_over(scores, axis=-2, keepdims=True)
        if iteration < num_iterations - 1:
            members = merge(scores == highest, counted)
            votes = ops.matmul(ops.cast(members, "float32"), signs)
            used = votes[..., -1:] > 0
            centroids = ops.where(used, ops.where(votes[..., :-1] > 0, 1.0, -1.0), centroids)
    # The remainder of minus the maximum; R C makes it positive.
    clusters = ops.cast(num_bits * num_clusters - highest[..., 0, :], "int32") % num_clusters
    return clusters if token_mask is None else ops.where(token_mask[:, None], clusters, num_clusters)


def l2_normalize(x: Tensor) -> Tensor:
    """Normalize vectors to length 1, in float32 (float64 for float64 inputs); zeros stay zeros."""
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    return x * ops.rsqrt(ops.maximum(ops.sum(ops.square(x), axis=-1, keepdims=True), 1e-12))


def lsh_buckets(x: Tensor, rotations: Tensor) -> list[Tensor]:
    """Hash vectors to buckets by angular LSH (Kitaev et al. 2020, "Reformer").

    The bucket is the nearest of the axes and their opposites after a random rotation. It depends only on the direction
    of the vector.

    Args:
        x: tensor (B, N, T, H).
        rotations: float (R, N, H, K / 2), random, for R rounds of K buckets.

    Returns:
        List of R int32 tensors (B, N, T): argmax of [x P, -x P].
    """
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    result = []
    for rotation in ops.unstack(ops.cast(rotations, x.dtype), axis=0):
        rotated = ops.einsum("BNTH,NHK->BNTK", x, rotation)
        result.append(argmax_last_axis(ops.concatenate([rotated, -rotated], axis=-1)))
    return result
