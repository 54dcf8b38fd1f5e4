"""Members of clusters: the highest-scoring tokens of each cluster, as in the published routing attention."""

from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import lowest, scatter_weights
from tf_sparse_attention.ops.shapes import find_top_k, pad_axis, shape
from tf_sparse_attention.types import Size, Tensor

BITS = 31  # bits of an int32 without the sign


class Members(NamedTuple):
    """Tokens of each cluster, by ascending position.

    Attributes:
        positions: int32 (B, N, K, w).
        valid: bool (B, N, K, w), False for slots of a cluster with less than w tokens. None: all are valid.
    """

    positions: Tensor
    valid: Tensor | None


def best_members(scores: Tensor, cluster_size: int, token_mask: Tensor | None = None) -> Members:
    """Select the w = min(cluster_size, T) tokens with the highest scores as `Members` of each cluster.

    Args:
        scores: float (B, N, T, K). Among equal scores, earlier tokens are selected.
        cluster_size: tokens per cluster.
        token_mask: bool (B, T), False for tokens that are not selected; or None.
    """
    length = shape(scores)[2]
    known = isinstance(length, int)
    none = lowest(scores.dtype)
    scores = ops.swapaxes(scores, -1, -2)  # (B, N, K, T)
    if token_mask is not None:
        scores = ops.where(token_mask[:, None, None, :], scores, none)
    if not known:  # padding to at least `cluster_size` tokens, because top-k needs a known k
        exists = pad_axis(ops.ones_like(scores, dtype="bool"), -1, 0, cluster_size)
        scores = ops.where(exists, pad_axis(scores, -1, 0, cluster_size), none)
    best, positions = find_top_k(scores, min(cluster_size, length) if known else cluster_size)
    if known and token_mask is None:
        return Members(ops.sort(positions, axis=-1), None)
    return _sorted_members(positions, best > none, shape(scores)[-1], length)


def _sorted_members(positions, found, beyond, length):
    """Return positions below `beyond`, those with `found` valid, as `Members`."""
    # Invalid positions are sorted last, so that they do not change the ranks of the members.
    positions = ops.sort(ops.where(found, positions, positions + beyond), axis=-1)
    return Members(ops.minimum(positions % beyond, length - 1), positions < beyond)


def strided_members(scores: Tensor, cluster_size: int, token_mask: Tensor | None = None) -> Members:
    """Select every max(T // w, 1)-th token by descending score as `Members` of each cluster.

    This is the selection of the published "strided" heads. It starts with the highest score. Among
    equal scores, earlier tokens come first. Cost O(K T log T).

    Args:
        scores: float (B, N, T, K).
        cluster_size: w, tokens per cluster. All tokens if there are fewer.
        token_mask: bool (B, T), False for tokens that are not selected and do not count in T; or None.
    """
    length = shape(scores)[2]
    exists = ops.ones_like(scores[:, :1, :, :1], dtype="bool")  # (B, 1, T, 1)
    exists = exists if token_mask is None else ops.logical_and(exists, token_mask[:, None, :, None])
    count = ops.sum(ops.cast(exists, "int32"), axis=2, keepdims=True)
    order = ops.argsort(ops.swapaxes(ops.where(exists, -scores, -lowest(scores.dtype)), -1, -2), axis=-1)
    taken = min(cluster_size, length) if isinstance(length, int) else cluster_size
    ranks = ops.arange(taken, dtype="int32") * ops.maximum(count // cluster_size, 1)  # (B, 1, 1, w)
    index = ops.broadcast_to(ops.minimum(ranks, length - 1), (*shape(order)[:3], taken))
    positions = ops.cast(ops.take_along_axis(order, index, axis=-1), "int32")
    return _sorted_members(positions, ranks < count, length, length)


def hash_scores(x: Tensor, planes: Tensor) -> Tensor:
    """Return one-hot hash buckets of tokens as scores for `best_members`, float32 (B, N, T, K).

    The bucket is the sum of 2^i over the planes i with x . p_i > 0. As in the published "hash" heads, a cluster has the
    first w tokens of its bucket. If the bucket has fewer, the first tokens of other buckets fill the cluster.

    Args:
        x: normalized tokens (B, N, T, H).
        planes: float (N, R, H), normals of R planes per head; K = 2^R.
    """
    above = ops.einsum("BNTH,NRH->BNTR", x, ops.cast(planes, x.dtype)) > 0
    num_planes = planes.shape[1]
    buckets = ops.sum(ops.cast(above, "int32") * 2 ** np.arange(num_planes, dtype="int32"), axis=-1)
    return ops.one_hot(buckets, 2**num_planes, dtype="float32")


def scatter_mean(x: Tensor, members: Members, length: Size, extra_count: float = 0.0) -> Tensor:
    """Average the results of each token over its clusters; zeros for a token in no cluster.

    Args:
        x: results (B, N, K, w, H) of the members.
        members: a `Members`.
        length: T.
        extra_count: added to the number of clusters of a token: 0.01 in the published code.

    Returns:
        Tensor (B, N, T, H).
    """
    batch, heads, _, _, size = shape(x)
    start = ops.reshape(ops.arange(batch * heads, dtype="int32") * length, (batch, heads, 1, 1))
    index = ops.reshape(members.positions + start, (-1,))
    valid = ops.ones_like(members.positions) if members.valid is None else ops.cast(members.valid, "int32")
    total = batch * heads * length
    count = ops.segment_sum(ops.cast(ops.reshape(valid, (-1,)), x.dtype), index, num_segments=total)
    if members.valid is not None:
        x = ops.where(members.valid[..., None], x, 0)
    sums = ops.segment_sum(ops.reshape(x, (-1, size)), index, num_segments=total)
    count = count + extra_count if extra_count else ops.maximum(count, 1)
    return ops.reshape(sums / count[:, None], (batch, heads, length, size))


def membership(members: Members, length: Size) -> Tensor:
    """Return whether each token is a member of each cluster, bool (B, N, K, length)."""
    valid = ops.ones_like(members.positions) if members.valid is None else members.valid
    return scatter_weights(ops.cast(valid, "float32"), members.positions, length) > 0


def set_names(num_clusters: int) -> tuple[str, ...]:
    """Return the keys of the dictionary that `cluster_sets` returns for `num_clusters` clusters."""
    return tuple(f"clusters_{number}" for number in range(-(-num_clusters // BITS)))


def cluster_sets(is_in: Tensor) -> dict[str, Tensor]:
    """Encode the clusters of each token as bit fields: a dictionary of int32 (B, N, T) with the keys `set_names(K)`.

    Args:
        is_in: bool (B, N, K, T), whether a token is in a cluster.
    """
    num_clusters = is_in.shape[2]
    bits = np.array([2 ** (cluster % BITS) for cluster in range(num_clusters)], "int32")
    parts = ops.where(is_in, bits[:, None], 0)
    sums = [ops.sum(parts[:, :, start : start + BITS], axis=2) for start in range(0, num_clusters, BITS)]
    return dict(zip(set_names(num_clusters), sums, strict=True))


def single_cluster_sets(clusters: Tensor, num_clusters: int) -> dict[str, Tensor]:
    """Return `cluster_sets` of tokens in one cluster each, for clusters int32 (B, N, T)."""
    return cluster_sets(clusters[:, :, None, :] == np.arange(num_clusters, dtype="int32")[:, None])
