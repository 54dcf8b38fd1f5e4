"""Online spherical k-means of routing attention: scores, EMA update, reset of dead centroids (Roy et al. 2021, 4.1).

All results are float32 (float64 for float64 inputs). Each head has its own centroids, (N, K, H).
"""

from typing import NamedTuple

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.shapes import argmax_last_axis
from tf_sparse_attention.types import Seed, Tensor

SMOOTHING = 1e-5  # of the counts, as published: prevents division by zero for an unused centroid


class State(NamedTuple):
    """State of the clustering.

    Attributes:
        centroids: float (N, K, H), `sums` divided by the smoothed `counts`.
        sums: float (N, K, H), the decayed sum of the members of each centroid.
        counts: float (N, K), the decayed number of members.
        unused: int32 (N, K), training steps since the centroid last had a member.
    """

    centroids: Tensor
    sums: Tensor
    counts: Tensor
    unused: Tensor


class Statistics(NamedTuple):
    """Sums over the members of one step, additive over replicas: float `sums` (N, K, H) and `counts` (N, K)."""

    sums: Tensor
    counts: Tensor


def normalize(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Apply layer normalization to the last axis, without scale or bias. Centroids are compared with the result."""
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    x = x - ops.mean(x, axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon)


def init_state(directions: Tensor) -> State:
    """Return the initial state: normalized `directions` (N, K, H) as centroids with a count of 1.

    Note: differs from the published code, where counts start at 0 and sums at the centroids, so that the first update
    multiplies the centroids by about 1 / (1 - decay).
    """
    centroids = normalize(directions)
    return State(
        centroids, centroids, ops.ones_like(centroids[..., 0]), ops.zeros_like(centroids[..., 0], dtype="int32")
    )


def init_state_from_data(x: Tensor, num_clusters: int, seed: Seed, token_mask: Tensor | None = None) -> State:
    """Return an initial state whose centroids are `num_clusters` random tokens, drawn per head.

    Args:
        x: queries (B, N, T, H) before normalization.
        num_clusters: K, at most the number of tokens that are not masked.
        seed: an integer or a `keras.random.SeedGenerator`.
        token_mask: bool (B, T), False for padding, which is drawn last; or None.
    """
    _, heads, _, size = x.shape
    tokens = ops.reshape(ops.transpose(x, (1, 0, 2, 3)), (heads, -1, size))
    if tokens.shape[1] is not None and tokens.shape[1] < num_clusters:
        raise ValueError(
            "`x` must hold at least `num_clusters` tokens to start from. "
            f"Received: {tokens.shape[1]} tokens, num_clusters={num_clusters}."
        )
    keys = keras.random.uniform(ops.shape(tokens)[:2], seed=seed)
    if token_mask is not None:
        keys = ops.where(ops.reshape(token_mask, (1, -1)), keys, -1.0)
    chosen = ops.top_k(keys, num_clusters)[1]  # (N, K)
    return init_state(ops.take_along_axis(tokens, chosen[..., None], axis=1))


def scores(x: Tensor, centroids: Tensor) -> Tensor:
    """Return the scores of normalized tokens (B, N, T, H) and unnormalized centroids: (B, N, T, K)."""
    return ops.einsum("BNTH,NKH->BNTK", x, ops.cast(centroids, x.dtype))


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroid with the highest score, int32 (B, N, T); the lowest index among equal scores."""
    return argmax_last_axis(scores(x, centroids))


def statistics(x: Tensor, clusters: Tensor, num_clusters: int, token_mask: Tensor | None = None) -> Statistics:
    """Return the `Statistics` of one step, without a gradient.

    Args:
        x: normalised tokens (B, N, T, H).
        clusters: int32 (B, N, T), the nearest centroid of each token.
        num_clusters: K.
        token_mask: bool (B, T), False for padding, which is not counted; or None.
    """
    members = ops.one_hot(clusters, num_clusters, dtype=x.dtype)  # (B, N, T, K)
    if token_mask is not None:
        counted = token_mask[:, None, :, None]
        # Both are masked: NaN in padding times zero is NaN, which would stay in the state.
        members, x = ops.where(counted, members, 0), ops.where(counted, x, 0)
    sums = ops.einsum("BNTK,BNTH->NKH", members, x)
    return Statistics(ops.stop_gradient(sums), ops.stop_gradient(ops.sum(members, axis=(0, 2))))


def commitment(x: Tensor, clusters: Tensor, centroids: Tensor, token_mask: Tensor | None = None) -> Tensor:
    """Compute the commitment loss, the mean of (x - stop(mu))^2 for tokens x and their centroids mu; a scalar.

    The mean is over heads, channels and unpadded tokens of a row, then over rows. An average over replicas, weighted by
    their number of rows, therefore equals the loss of the whole batch, even if replicas differ in padding. An empty
    batch gives 0.

    Args:
        x, clusters, token_mask: as in `statistics`.
        centroids: float (N, K, H).
    """
    members = ops.one_hot(clusters, centroids.shape[1], dtype=x.dtype)
    nearest_centroids = ops.stop_gradient(ops.einsum("BNTK,NKH->BNTH", members, ops.cast(centroids, x.dtype)))
    distance = x - nearest_centroids
    if token_mask is not None:
        distance = ops.where(token_mask[:, None, :, None], distance, 0)
    distance = ops.mean(ops.square(distance), axis=(1, 3))  # (B, T)
    weights = ops.ones_like(distance)
    if token_mask is not None:
        weights = ops.broadcast_to(ops.cast(token_mask, x.dtype), ops.shape(distance))
    row_means = ops.sum(distance, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
    return ops.sum(row_means) / ops.cast(ops.maximum(ops.shape(row_means)[0], 1), x.dtype)


def update(state: State, observed: Statistics, decay: float) -> State:
    """Return the state after one step of the exponential moving average.

    counts += (1 - decay) (observed.counts - counts) and sums += (1 - decay) (observed.sums - sums). Then centroids =
    sums / smoothed with smoothed = (counts + 1e-5) / (n + K 1e-5) n and n = sum of counts over the centroids of a head.

    Args:
        state: a `State`.
        observed: the `Statistics` of queries and keys, summed over all replicas.
        decay: number in [0, 1).
    """
    counts = state.counts - (1 - decay) * (state.counts - observed.counts)
    sums = state.sums - (1 - decay) * (state.sums - observed.sums)
    unused = ops.where(observed.counts > 0, 0, state.unused + 1)
    return State(compute_centroids(sums, counts), sums, counts, unused)


def compute_centroids(sums: Tensor, counts: Tensor) -> Tensor:
    """Divide sums (N, K, H) by smoothed counts (N, K)."""
    total = ops.sum(counts, axis=-1, keepdims=True)
    smoothed = (counts + SMOOTHING) / (total + counts.shape[-1] * SMOOTHING) * total
    return sums / ops.maximum(smoothed, 1e-12)[..., None]


def revive(state: State, revive_after: int, noise: Tensor) -> State:
    """Reset centroids that were unused for `revive_after` steps by splitting the largest centroids.

    The i-th unused centroid of a head becomes the i-th largest centroid in use plus noise. Each of the two gets half of
    the count and the sums. The result depends only on the state, so replicas with the same state agree.

    Args:
        state: a `State`.
        revive_after: number of steps.
        noise: float (N, K, H), added to the direction of a reset centroid so that it differs from the split one.
    """
    dead = state.unused >= revive_after
    live_counts = ops.where(dead, -1.0, state.counts)
    by_count = ops.argsort(-live_counts, axis=-1)  # (N, K)
    rank = ops.cumsum(ops.cast(dead, "int32"), axis=-1) - 1  # i of the i-th unused centroid
    donor = ops.take_along_axis(by_count, ops.maximum(rank, 0), axis=-1)
    revived = ops.logical_and(dead, ops.take_along_axis(live_counts, donor, axis=-1) > 0)
    given = (
        ops.one_hot(donor, dead.shape[-1], dtype=state.counts.dtype) * ops.cast(revived, state.counts.dtype)[..., None]
    )
    kept = 1 - 0.5 * ops.sum(given, axis=1)  # 0.5 for centroids that are split
    counts = ops.where(revived, 0.5 * ops.matmul(given, state.counts[..., None])[..., 0], state.counts * kept)
    split_sums = 0.5 * ops.matmul(given, state.sums) + counts[..., None] * noise
    sums = ops.where(revived[..., None], split_sums, state.sums * kept[..., None])
    changed = ops.any(revived, axis=-1)[:, None, None]
    centroids = ops.where(changed, compute_centroids(sums, counts), state.centroids)
    return State(centroids, sums, counts, ops.where(revived, 0, state.unused))
