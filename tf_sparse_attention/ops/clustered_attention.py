"""Clustered attention (Vyas et al. 2020): one attention distribution per cluster of similar queries."""

from typing import NamedTuple, Self

import keras
from keras import ops

from tf_sparse_attention.ops.attend import (
    Attended,
    Dropout,
    apply_dropout,
    attend,
    attend_heads,
    scatter_weights,
    score_dtype,
)
from tf_sparse_attention.ops.gather import stable_order, take_blocks, take_members, take_numbers, take_unique_rows
from tf_sparse_attention.ops.shapes import find_top_k, in_range, join, matmul_heads, min_if_known, min_size, shape
from tf_sparse_attention.types import Tensor

BLOCK_SIZE = 32  # of `ClusterBlocks`


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
    """Compute attention of the mean query of each cluster for all queries in the cluster, O((T + S) C).

    out_i = sum_j A_cj v_j with A_c = softmax(mean query of i's cluster . k_j) (Vyas et al. 2020, equations 3 to 5).

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, M, S, H). N is a multiple of M (grouped-query attention).
        value: values (B, M, S, Hv).
        clusters: int32 (B, N, T), in 0 .. C. C is padding, with output 0.
        num_clusters: C.
        key_mask: bool, broadcastable to (B, N, 1, S), False for masked keys; or None.
        dropout: an `attend.Dropout`, equal for all queries in a cluster; or None.
        return_weights: whether to return dense weights.

    Returns:
        An `Attended`: the output (B, N, T, Hv) and, if requested, the weights (B, N, T, S).
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
    """Compute clustered attention with exact weights for the top keys of each cluster.

    For the k keys J with the largest A_c, query i computes its own weights, with the same sum r = sum_{j in J} A_cj:
    out_i = sum_{j not in J} A_cj v_j + r sum_{j in J} softmax_J(q_i . k_j) v_j (Vyas et al. 2020, equations 6 to 8).
    Queries attend in blocks of their cluster, so the top keys are gathered per block instead of per query.

    Note: differs from the published code, which treats r as a constant in the gradient.

    Args:
        query, key, value, clusters, num_clusters, key_mask, return_weights: as in `clustered_attention`.
        top_k: k. All keys if there are fewer.
        dropout: an `attend.Dropout`, drawn per query for the keys in J; or None.

    Returns:
        An `Attended`, as `clustered_attention`.
    """
    means = mean_queries(query, clusters, num_clusters)
    weights = _attend_all(means, key, value, key_mask, return_weights=True).weights  # (B, N, C, S)
    top = find_top_keys(weights, key_mask, top_k)
    is_top = scatter_weights(ops.cast(top.valid, "float32"), top.positions, shape(key)[-2]) > 0
    far = ops.where(is_top, 0, weights)
    blocks = ClusterBlocks.from_clusters(clusters, num_clusters)
    share = blocks.gather_clusters(ops.sum(ops.where(is_top, weights, 0), axis=-1, keepdims=True))[..., None, :]
    near = attend(
        blocks.arrange(query),
        blocks.gather_clusters(take_members(key, top.positions)),
        blocks.gather_clusters(take_members(value, top.positions)),
        mask=blocks.gather_clusters(top.valid)[:, :, :, None],
        dropout=dropout,
        return_weights=return_weights,
    )
    base = blocks.gather_clusters(matmul_heads(apply_dropout(far, dropout), value))[..., None, :]
    output = blocks.restore(base + share * near.output)
    if not return_weights:
        return Attended(output)
    dense = scatter_weights(near.weights, blocks.gather_clusters(top.positions)[..., None, :], shape(key)[-2])
    return Attended(output, blocks.restore(blocks.gather_clusters(far)[..., None, :] + share * dense))


def _attend_all(query, key, value, mask, **options):
    """Compute attention of (B, N, C, H) to keys (B, M, S, H) under a mask for all queries."""
    if query.shape[1] == key.shape[1]:
        return attend(query, key, value, mask=mask, **options)
    query, key, value, mask = (None if x is None else x[:, :, None] for x in (query, key, value, mask))
    attended = attend_heads(query, key, value, mask=mask, **options)
    return Attended(*(None if x is None else x[:, :, 0] for x in attended))


class TopKeys(NamedTuple):
    """Keys with the largest weights of each cluster: int32 (B, N, C, k) `positions`, and bool `valid`."""

    positions: Tensor
    valid: Tensor


def find_top_keys(weights: Tensor, key_mask: Tensor | None, top_k: int) -> TopKeys:
    """Return the `TopKeys` of clusters by weights (B, N, C, S); masked keys are not valid."""
    length = shape(weights)[-1]
    weights = ops.cast(ops.stop_gradient(weights), score_dtype(keras.backend.standardize_dtype(weights.dtype)))
    if key_mask is not None:
        weights = ops.where(key_mask, weights, -1)
    # Padding to at least `top_k` columns, below every unmasked key.
    weights = ops.pad(weights, [(0, 0)] * 3 + [(0, top_k)], constant_values=-1)
    best, positions = find_top_k(weights, top_k)
    return TopKeys(ops.minimum(positions, length - 1), best >= 0)


def mean_queries(query: Tensor, clusters: Tensor, num_clusters: int) -> Tensor:
    """Return the mean query of each cluster, (B, N, C, H); zeros for an empty cluster."""
    dtype = score_dtype(keras.backend.standardize_dtype(query.dtype))
    members = ops.swapaxes(ops.one_hot(clusters, num_clusters, dtype=dtype), -1, -2)
    counts = ops.maximum(ops.sum(members, axis=-1, keepdims=True), 1)
    return ops.cast(ops.matmul(members, ops.cast(query, dtype)) / counts, query.dtype)


def broadcast_to_members(x: Tensor, clusters: Tensor) -> Tensor:
    """Copy the rows of clusters to their tokens, (B, N, C, H) to (B, N, T, H); zeros for padding."""
    # A product with a one-hot matrix: its gradient is a product too, not a scatter.
    return ops.matmul(ops.one_hot(clusters, shape(x)[2], dtype=x.dtype), x)


class ClusterBlocks(NamedTuple):
    """Tokens sorted by cluster into G blocks of b slots, P = G b; each block has tokens of one cluster.

    Attributes:
        tokens: int32 (B, N, P), the token in each slot; arbitrary in an empty slot.
        present: bool (B, N, P), False for empty slots and padding.
        slots: int32 (B, N, T), the slot of each token.
        exists: bool (B, N, T), False for padding.
        cluster_of_block: int32 (B, N, G), in 0 .. C - 1; arbitrary for an empty block.
    """

    tokens: Tensor
    present: Tensor
    slots: Tensor
    exists: Tensor
    cluster_of_block: Tensor

    @classmethod
    def from_clusters(cls, clusters: Tensor, num_clusters: int, block_size: int = BLOCK_SIZE) -> Self:
        """Return the blocks of clusters (B, N, T), in 0 .. C; C is padding.

        Each cluster has less than one block of empty slots, so min(T / b + C + 1, T) blocks are enough.
        """
        length = shape(clusters)[-1]
        block_size = min_if_known(block_size, length)
        order, ranks = stable_order(clusters)
        is_member = clusters[..., None] == ops.arange(
            num_clusters + 1, dtype="int32"
        )  # ONNX has no `one_hot` of integers
        counts = ops.sum(ops.cast(is_member, "int32"), axis=2)  # (B, N, C + 1)
        blocks = (counts + block_size - 1) // block_size
        first_rank, first_slot = (ops.cumsum(x, axis=-1) - x for x in (counts, blocks * block_size))
        num_slots = min_size(length // block_size + num_clusters + 1, length) * block_size
        slots = ops.arange(num_slots, dtype="int32")
        # The last cluster that starts at or before the block. An empty cluster starts where the next one starts.
        has_started = ops.cast(slots[::block_size, None] >= first_slot[:, :, None, :], "int32")
        cluster_of_block = ops.sum(has_started, axis=-1) - 1  # (B, N, G)
        by_slot = ops.repeat(cluster_of_block, block_size, axis=-1)
        in_cluster = slots - take_numbers(first_slot, by_slot)
        held = ops.logical_and(in_cluster < take_numbers(counts, by_slot), by_slot < num_clusters)
        rank = in_range(take_numbers(first_rank, by_slot) + in_cluster, length)
        own_slot = take_numbers(first_slot, clusters) + ranks - take_numbers(first_rank, clusters)
        nearest = ops.minimum(cluster_of_block, num_clusters - 1)
        return cls(take_numbers(order, rank), held, own_slot, clusters < num_clusters, nearest)

    def arrange(self, x: Tensor) -> Tensor:
        """Arrange tokens in blocks: (B, N, T, H) to (B, N, G, b, H)."""
        # Results of empty slots are not used, so the gradient may skip them.
        num_blocks = shape(self.cluster_of_block)[-1]
        rows = take_unique_rows(x, self.tokens, self.slots)
        return ops.reshape(rows, (*shape(rows)[:2], num_blocks, -1, shape(rows)[-1]))

    def gather_clusters(self, x: Tensor) -> Tensor:
        """Gather the data of the cluster of each block: (B, M, C, ...) to (B, N, G, ...)."""
        return take_blocks(x, self.cluster_of_block)

    def restore(self, x: Tensor) -> Tensor:
        """Undo `arrange`: (B, N, G, b, H) to (B, N, T, H), with zeros for padding."""
        rows = join(x, -2, shape(self.tokens)[-1])
        rows = take_unique_rows(rows, self.slots, self.tokens, self.present)
        return ops.where(self.exists[..., None], rows, 0)
