"""Clustered attention (Vyas et al. 2020): queries that are alike attend together."""

from typing import NamedTuple

import keras
from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, apply_dropout, attend, scatter_weights, score_dtype
from tf_sparse_attention.ops.blocks import find_top_k, shape
from tf_sparse_attention.ops.cluster_blocks import ClusterBlocks
from tf_sparse_attention.ops.gather import take_members
from tf_sparse_attention.ops.grouped_heads import attend_heads, matmul_heads
from tf_sparse_attention.types import Tensor


def clustered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    clusters: Tensor,
    num_clusters: int,
    key_mask: Tensor | None = None,
    dropout: Dropout | None = None,
    return_weights: bool = False,
) -> Attended:
    """Computes attention of the mean query of each cluster, which all its members get, in O((T + S) C).

    out_i = sum_j A_cj v_j with A_c = softmax(mean query of i's cluster . k_j) (Vyas et al. 2020, equations 3 to 5).

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, M, S, H), of as many heads or of fewer that they share in groups.
        value: values (B, M, S, Hv).
        clusters: int32 (B, N, T), in 0 .. C; C is padding, whose output is 0.
        num_clusters: C.
        key_mask: bool, broadcastable to (B, N, 1, S), False for keys that do not exist; or None.
        dropout: an `attend.Dropout`, which drops for all members alike; or None.
        return_weights: whether to return dense weights as well.

    Returns:
        An `Attended`: the output (B, N, T, Hv) and, if asked for, the weights (B, N, T, S).
    """
    means = mean_queries(query, clusters, num_clusters)
    attended = _attend_all(means, key, value, key_mask, dropout=dropout, return_weights=return_weights)
    weights = broadcast_to_members(attended.weights, clusters) if return_weights else None
    return Attended(broadcast_to_members(attended.output, clusters), weights)


def improved_clustered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    clusters: Tensor,
    num_clusters: int,
    top_k: int,
    key_mask: Tensor | None = None,
    dropout: Dropout | None = None,
    return_weights: bool = False,
) -> Attended:
    """Computes clustered attention whose queries weigh the best keys of their cluster themselves.

    The k keys J of largest A_c get the weights that query i itself gives them, of the same sum r = sum_{j in J} A_cj:
    out_i = sum_{j not in J} A_cj v_j + r sum_{j in J} softmax_J(q_i . k_j) v_j (Vyas et al. 2020, equations 6 to 8).
    Members attend in blocks of their cluster, so that the best keys are gathered for a block and not for a query.

    Note: differs from the published code, which takes r for a constant in the gradient.

    Args:
        top_k: k. Where fewer keys exist, all of them.
        query: as in `clustered_attention`; so are all others, except that `dropout` drops the weights of J for each
            query.

    Returns:
        An `Attended`, as `clustered_attention`.
    """
    means = mean_queries(query, clusters, num_clusters)
    weights = _attend_all(means, key, value, key_mask, return_weights=True).weights  # (B, N, C, S)
    best = find_top_keys(weights, key_mask, top_k)
    is_best = scatter_weights(ops.cast(best.valid, "float32"), best.positions, shape(key)[-2]) > 0
    far = ops.where(is_best, 0, weights)
    blocks = ClusterBlocks.of(clusters, num_clusters)
    share = blocks.of_clusters(ops.sum(ops.where(is_best, weights, 0), axis=-1, keepdims=True))[..., None, :]
    near = attend(
        blocks.arrange(query),
        blocks.of_clusters(take_members(key, best.positions)),
        blocks.of_clusters(take_members(value, best.positions)),
        mask=blocks.of_clusters(best.valid)[:, :, :, None],
        dropout=dropout,
        return_weights=return_weights,
    )
    base = blocks.of_clusters(matmul_heads(apply_dropout(far, dropout), value))[..., None, :]
    output = blocks.restore(base + share * near.output)
    if not return_weights:
        return Attended(output)
    dense = scatter_weights(near.weights, blocks.of_clusters(best.positions)[..., None, :], shape(key)[-2])
    return Attended(output, blocks.restore(blocks.of_clusters(far)[..., None, :] + share * dense))


def _attend_all(query, key, value, mask, **options):
    """Returns the `Attended` of (B, N, C, H) to keys (B, M, S, H), which heads may share, under a mask for all."""
    if query.shape[1] == key.shape[1]:
        return attend(query, key, value, mask=mask, **options)
    query, key, value, mask = (None if x is None else x[:, :, None] for x in (query, key, value, mask))
    attended = attend_heads(query, key, value, mask=mask, **options)
    return Attended(*(None if x is None else x[:, :, 0] for x in attended))


class TopKeys(NamedTuple):
    """The keys of largest weight of each cluster: int32 (B, N, C, k) `positions`, and bool `valid` of those found."""

    positions: Tensor
    valid: Tensor


def find_top_keys(weights: Tensor, key_mask: Tensor | None, top_k: int) -> TopKeys:
    """Returns the `TopKeys` of clusters by their weights (B, N, C, S); keys that do not exist are never taken."""
    exists = ops.ones_like(weights, dtype="bool")
    exists = exists if key_mask is None else ops.logical_and(exists, key_mask)
    length = shape(weights)[-1]
    weights = ops.cast(ops.stop_gradient(weights), score_dtype(keras.backend.standardize_dtype(weights.dtype)))
    weights = ops.where(exists, weights, -1)
    # No fewer columns than `top_k`, none of them better than a key, however little that weighs.
    weights = ops.pad(weights, [(0, 0)] * 3 + [(0, top_k)], constant_values=-1)
    best, positions = find_top_k(weights, top_k)
    return TopKeys(ops.minimum(positions, length - 1), best >= 0)


def mean_queries(query: Tensor, clusters: Tensor, num_clusters: int) -> Tensor:
    """Returns the mean query of each cluster, (B, N, C, H); zeros where it has no member."""
    dtype = score_dtype(keras.backend.standardize_dtype(query.dtype))
    members = ops.swapaxes(ops.one_hot(clusters, num_clusters, dtype=dtype), -1, -2)
    counts = ops.maximum(ops.sum(members, axis=-1, keepdims=True), 1)
    return ops.cast(ops.matmul(members, ops.cast(query, dtype)) / counts, query.dtype)


def broadcast_to_members(x: Tensor, clusters: Tensor) -> Tensor:
    """Returns the row of each token's cluster, (B, N, C, H) to (B, N, T, H); zeros for padding."""
    # A product with zeros and ones, whose gradient is one too and not a scatter.
    return ops.matmul(ops.one_hot(clusters, shape(x)[2], dtype=x.dtype), x)
