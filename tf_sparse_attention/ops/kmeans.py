"""Online spherical k-means of routing attention: scores, EMA update, revival (Roy et al. 2021, section 4.1).

Everything here is float32 (float64 for float64 inputs). Centroids are (N, K, H): each head has its own.
"""

from typing import NamedTuple

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.groups import best_group
from tf_sparse_attention.types import Seed, Tensor

SMOOTHING = 1e-5  # of the counts, as published; keeps an unused centroid from dividing by zero


class State(NamedTuple):
    """What the clustering remembers.

    Attributes:
        centroids: float (N, K, H), `sums` divided by the smoothed `counts`.
        sums: float (N, K, H), the decayed sum of the members of each centroid.
        counts: float (N, K), the decayed number of members.
        unused: int32 (N, K), training steps since a centroid last had a member.
    """

    centroids: Tensor
    sums: Tensor
    counts: Tensor
    unused: Tensor


class Statistics(NamedTuple):
    """Sums over the members of one step, to be added over replicas: float `sums` (N, K, H) and `counts` (N, K)."""

    sums: Tensor
    counts: Tensor


def normalize(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Returns layer normalisation of the last axis without scale or bias, what is compared with centroids."""
    x = ops.cast(x, score_dtype(keras.backend.standardize_dtype(x.dtype)))
    x = x - ops.mean(x, axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + epsilon)


def init_state(directions: Tensor) -> State:
    """Returns the state to start from: normalised `directions` (N, K, H) that count as one member each.

    Note: differs from the published code, whose counts start at 0 while its sums start at the centroids: its first
    update multiplies the centroids by about 1 / (1 - decay).
    """
    centroids = normalize(directions)
    return State(
        centroids, centroids, ops.ones_like(centroids[..., 0]), ops.zeros_like(centroids[..., 0], dtype="int32")
    )


def init_state_from_data(x: Tensor, num_clusters: int, seed: Seed, token_mask: Tensor | None = None) -> State:
    """Returns a state whose centroids are `num_clusters` tokens drawn at random, one set a head.

    Args:
        x: queries (B, N, T, H) before normalisation.
        num_clusters: K, at most the number of tokens that are not masked out.
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
    """Returns the scores of normalised tokens (B, N, T, H) against centroids that are not normalised: (B, N, T, K)."""
    return ops.einsum("BNTH,NKH->BNTK", x, ops.cast(centroids, x.dtype))


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """Returns the centroid of the largest score, the lowest index of equals: int32 (B, N, T)."""
    return best_group(scores(x, centroids))


def statistics(x: Tensor, clusters: Tensor, num_clusters: int, token_mask: Tensor | None = None) -> Statistics:
    """Returns the `Statistics` of one step, without a gradient.

    Args:
        x: normalised tokens (B, N, T, H).
        clusters: int32 (B, N, T), the nearest centroid of each.
        num_clusters: K.
        token_mask: bool (B, T), False for padding, which is not counted; or None.
    """
    members = ops.one_hot(clusters, num_clusters, dtype=x.dtype)  # (B, N, T, K)
    if token_mask is not None:
        counted = token_mask[:, None, :, None]
        # Both: padding may hold NaN, which times zero is NaN and would stay in the state for good.
        members, x = ops.where(counted, members, 0), ops.where(counted, x, 0)
    sums = ops.einsum("BNTK,BNTH->NKH", members, x)
    return Statistics(ops.stop_gradient(sums), ops.stop_gradient(ops.sum(members, axis=(0, 2))))


def commitment(x: Tensor, clusters: Tensor, centroids: Tensor, token_mask: Tensor | None = None) -> Tensor:
    """Compute the mean of (x - stop(mu))^2, mu being the centroid of a token; a scalar.

    The mean over heads, channels and the tokens of a row without padding, then over the rows. Replicas
    that weight their means by rows therefore have the loss of one device on the joined batch, however their padding
    differs. 0 without rows. `x`, `clusters` and `token_mask` are as in `statistics`.
    """
    members = ops.one_hot(clusters, centroids.shape[1], dtype=x.dtype)
    own = ops.stop_gradient(ops.einsum("BNTK,NKH->BNTH", members, ops.cast(centroids, x.dtype)))
    distance = x - own
    if token_mask is not None:
        distance = ops.where(token_mask[:, None, :, None], distance, 0)
    distance = ops.mean(ops.square(distance), axis=(1, 3))  # (B, T)
    weights = ops.ones_like(distance)
    if token_mask is not None:
        weights = ops.broadcast_to(ops.cast(token_mask, x.dtype), ops.shape(distance))
    of_rows = ops.sum(distance, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
    return ops.sum(of_rows) / ops.cast(ops.maximum(ops.shape(of_rows)[0], 1), x.dtype)


def update(state: State, seen: Statistics, decay: float) -> State:
    """Returns the state after one step of the exponential moving average.

    counts += (1 - decay) (n - counts), sums += (1 - decay) (s - sums), centroids = sums / smoothed with
    smoothed = (counts + 1e-5) / (N + K 1e-5) N and N = sum of counts over the centroids of a head.

    Args:
        state: a `State`.
        seen: the `Statistics` of queries and keys of all replicas together, so that the order does not matter.
        decay: number in [0, 1).
    """
    counts = state.counts - (1 - decay) * (state.counts - seen.counts)
    sums = state.sums - (1 - decay) * (state.sums - seen.sums)
    unused = ops.where(seen.counts > 0, 0, state.unused + 1)
    return State(compute_centroids(sums, counts), sums, counts, unused)


def compute_centroids(sums: Tensor, counts: Tensor) -> Tensor:
    """Returns sums (N, K, H) divided by the smoothed counts (N, K)."""
    total = ops.sum(counts, axis=-1, keepdims=True)
    smoothed = (counts + SMOOTHING) / (total + counts.shape[-1] * SMOOTHING) * total
    return sums / ops.maximum(smoothed, 1e-12)[..., None]


def revive(state: State, revive_after: int, noise: Tensor) -> State:
    """Returns the state with centroids unused for `revive_after` steps moved to the fullest ones.

    The i-th unused centroid of a head becomes the i-th fullest one in use plus noise, and both take half of that
    one's count and sums. A function of the state alone, so replicas that hold the same state agree.

    Args:
        state: a `State`.
        revive_after: steps.
        noise: float (N, K, H), added to the direction of a revived centroid to tell it from the one it splits.
    """
    dead = state.unused >= revive_after
    fullness = ops.where(dead, -1.0, state.counts)
    by_fullness = ops.argsort(-fullness, axis=-1)  # (N, K)
    place = ops.cumsum(ops.cast(dead, "int32"), axis=-1) - 1  # i, of the i-th unused
    donor = ops.take_along_axis(by_fullness, ops.maximum(place, 0), axis=-1)
    revived = ops.logical_and(dead, ops.take_along_axis(fullness, donor, axis=-1) > 0)
    given = (
        ops.one_hot(donor, dead.shape[-1], dtype=state.counts.dtype) * ops.cast(revived, state.counts.dtype)[..., None]
    )
    kept = 1 - 0.5 * ops.sum(given, axis=1)  # a half for the centroids that were split
    counts = ops.where(revived, 0.5 * ops.matmul(given, state.counts[..., None])[..., 0], state.counts * kept)
    split_sums = 0.5 * ops.matmul(given, state.sums) + counts[..., None] * noise
    sums = ops.where(revived[..., None], split_sums, state.sums * kept[..., None])
    changed = ops.any(revived, axis=-1)[:, None, None]
    centroids = ops.where(changed, compute_centroids(sums, counts), state.centroids)
    return State(centroids, sums, counts, ops.where(revived, 0, state.unused))
