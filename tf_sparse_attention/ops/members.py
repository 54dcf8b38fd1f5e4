"""The best tokens of each cluster of a sequence, side by side, as routing attention was published."""

from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import lowest, scatter_weights
from tf_sparse_attention.ops.shapes import find_top_k, pad_axis, shape
from tf_sparse_attention.types import Size, Tensor

BITS = 31  # of an int32 that is not negative


class Members(NamedTuple):
    """The tokens of each cluster, by ascending position.

    Attributes:
        positions: int32 (B, N, K, w).
        valid: bool (B, N, K, w), False where a cluster found fewer than w tokens; or None: all are valid.
    """

    positions: Tensor
    valid: Tensor | None


def best_members(scores: Tensor, cluster_size: int, token_mask: Tensor | None = None) -> Members:
    """Returns the `Members` of each cluster: the w = min(cluster_size, T) tokens of the largest score.

    Args:
        scores: float (B, N, T, K); of equal ones the token that comes first is taken.
        cluster_size: tokens of a cluster.
        token_mask: bool (B, T), False for tokens that are never taken; or None.
    """
    length = shape(scores)[2]
    known = isinstance(length, int)
    none = lowest(scores.dtype)
    scores = ops.swapaxes(scores, -1, -2)  # (B, N, K, T)
    if token_mask is not None:
        scores = ops.where(token_mask[:, None, None, :], scores, none)
    if not known:  # no fewer than `cluster_size` places, as the number of best ones has to be known
        exists = pad_axis(ops.ones_like(scores, dtype="bool"), -1, 0, cluster_size)
        scores = ops.where(exists, pad_axis(scores, -1, 0, cluster_size), none)
    best, positions = find_top_k(scores, min(cluster_size, length) if known else cluster_size)
    if known and token_mask is None:
        return Members(ops.sort(positions, axis=-1), None)
    return _sorted_members(positions, best > none, shape(scores)[-1], length)


def _sorted_members(positions, found, beyond, length):
    """Returns positions below `beyond` as `Members`, of which only those `found` are valid."""
    # What is taken for want of a token goes last, so that it has no rank among the members.
    positions = ops.sort(ops.where(found, positions, positions + beyond), axis=-1)
    return Members(ops.minimum(positions % beyond, length - 1), positions < beyond)


def strided_members(scores: Tensor, cluster_size: int, token_mask: Tensor | None = None) -> Members:
    """Returns the `Members` of each cluster by strides: every max(T // w, 1)-th token by falling score, the best first.

    The published "strided" heads: w = `cluster_size` tokens, near and far alike. Of equal ones the token that comes
    first is first. O(K T log T).

    Args:
        scores: float (B, N, T, K).
        cluster_size: w, tokens of a cluster; of fewer than w all are taken.
        token_mask: bool (B, T), False for tokens that are never taken and not counted in T; or None.
    """
    length = shape(scores)[2]
    exists = ops.ones_like(scores[:, :1, :, :1], dtype="bool")  # (B, 1, T, 1)
    exists = exists if token_mask is None else ops.logical_and(exists, token_mask[:, None, :, None])
    count = ops.sum(ops.cast(exists, "int32"), axis=2, keepdims=True)
    order = ops.argsort(ops.swapaxes(ops.where(exists, -scores, -lowest(scores.dtype)), -1, -2), axis=-1)
    taken = min(cluster_size, length) if isinstance(length, int) else cluster_size
    ranks = ops.arange(taken, dtype="int32") * ops.maximum(count // cluster_size, 1)  # (B, 1, 1, w)
    places = ops.broadcast_to(ops.minimum(ranks, length - 1), (*shape(order)[:3], taken))
    positions = ops.cast(ops.take_along_axis(order, places, axis=-1), "int32")
    return _sorted_members(positions, ranks < count, length, length)


def hash_scores(x: Tensor, planes: Tensor) -> Tensor:
    """Returns scores of which `best_members` makes hash buckets: 1 in the bucket of a token, else 0, (B, N, T, K).

    The bucket is the sum of 2^i over the planes i that a token lies above, x . p_i > 0. A cluster holds the first w
    tokens of its bucket and, where they are fewer, the first of the others, as in the published "hash" heads.

    Args:
        x: normalised tokens (B, N, T, H).
        planes: float (N, R, H), normals of R planes of each head; K = 2^R.
    """
    above = ops.einsum("BNTH,NRH->BNTR", x, ops.cast(planes, x.dtype)) > 0
    num_planes = planes.shape[1]
    buckets = ops.sum(ops.cast(above, "int32") * 2 ** np.arange(num_planes, dtype="int32"), axis=-1)
    return ops.one_hot(buckets, 2**num_planes, dtype="float32")


def scatter_mean(x: Tensor, members: Members, length: Size, extra_count: float = 0.0) -> Tensor:
    """Averages what each token got from the clusters that hold it; zeros for a token in no cluster.

    Args:
        x: tensor (B, N, K, w, H).
        members: the `Members` that `x` belongs to.
        length: T.
        extra_count: added to the number of clusters: 0.01 in the published code.

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
    """Returns which tokens `Members` hold, bool (B, N, K, length)."""
    held = ops.ones_like(members.positions) if members.valid is None else members.valid
    return scatter_weights(ops.cast(held, "float32"), members.positions, length) > 0


def set_names(num_clusters: int) -> tuple[str, ...]:
    """Returns the names of the integers whose bits are a set of so many clusters, see `cluster_sets`."""
    return tuple(f"clusters_{number}" for number in range(-(-num_clusters // BITS)))


def cluster_sets(is_in: Tensor) -> dict[str, Tensor]:
    """Returns the set of the clusters of each token as bits of integers, int32 (B, N, T) by their `set_names`.

    Args:
        is_in: bool (B, N, K, T), whether a token is in a cluster.
    """
    num_clusters = is_in.shape[2]
    bits = np.array([2 ** (cluster % BITS) for cluster in range(num_clusters)], "int32")
    parts = ops.where(is_in, bits[:, None], 0)
    sums = [ops.sum(parts[:, :, start : start + BITS], axis=2) for start in range(0, num_clusters, BITS)]
    return dict(zip(set_names(num_clusters), sums, strict=True))


def own_cluster_sets(clusters: Tensor, num_clusters: int) -> dict[str, Tensor]:
    """Returns `cluster_sets` of tokens in one cluster each, int32 (B, N, T)."""
    return cluster_sets(clusters[:, :, None, :] == np.arange(num_clusters, dtype="int32")[:, None])
