"""Tokens by cluster, each cluster filled up to whole blocks, so that a block attends to what its cluster chose."""

from typing import NamedTuple, Self

from keras import ops

from tf_sparse_attention.ops.gather import stable_order, take_blocks, take_numbers, take_unique_rows
from tf_sparse_attention.ops.shapes import in_range, join, min_if_known, min_size, shape
from tf_sparse_attention.types import Tensor

BLOCK_SIZE = 32


class ClusterBlocks(NamedTuple):
    """G blocks of b slots, P = G b in all; each block holds tokens of one cluster. All int32 or bool.

    Attributes:
        tokens: (B, N, P), the token at each slot, any at an empty one.
        present: (B, N, P), whether a slot holds a token that is no padding.
        slots: (B, N, T), the slot of each token.
        exists: (B, N, T), whether a token is no padding.
        cluster_of_block: (B, N, G), in 0 .. C - 1; any in a block without tokens.
    """

    tokens: Tensor
    present: Tensor
    slots: Tensor
    exists: Tensor
    cluster_of_block: Tensor

    @classmethod
    def of(cls, clusters: Tensor, num_clusters: int, block_size: int = BLOCK_SIZE) -> Self:
        """Returns the blocks of clusters (B, N, T), numbers from 0 to C; C is padding.

        Every cluster wastes less than a block, so T / b + C + 1 blocks are enough, and so are T, one for each token.
        """
        length = shape(clusters)[-1]
        block_size = min_if_known(block_size, length)
        order, ranks = stable_order(clusters)
        is_of = clusters[..., None] == ops.arange(num_clusters + 1, dtype="int32")  # ONNX has no `one_hot` of integers
        counts = ops.sum(ops.cast(is_of, "int32"), axis=2)  # (B, N, C + 1)
        blocks = (counts + block_size - 1) // block_size
        first_rank, first_slot = (ops.cumsum(x, axis=-1) - x for x in (counts, blocks * block_size))
        num_slots = min_size(length // block_size + num_clusters + 1, length) * block_size
        slots = ops.arange(num_slots, dtype="int32")
        # The last cluster that begins at or before a block; an empty one ends where the next begins.
        begun = ops.cast(slots[::block_size, None] >= first_slot[:, :, None, :], "int32")
        cluster_of_block = ops.sum(begun, axis=-1) - 1  # (B, N, G)
        by_slot = ops.repeat(cluster_of_block, block_size, axis=-1)
        in_cluster = slots - take_numbers(first_slot, by_slot)
        held = ops.logical_and(in_cluster < take_numbers(counts, by_slot), by_slot < num_clusters)
        rank = in_range(take_numbers(first_rank, by_slot) + in_cluster, length)
        own_slot = take_numbers(first_slot, clusters) + ranks - take_numbers(first_rank, clusters)
        nearest = ops.minimum(cluster_of_block, num_clusters - 1)
        return cls(take_numbers(order, rank), held, own_slot, clusters < num_clusters, nearest)

    def arrange(self, x: Tensor) -> Tensor:
        """Returns tokens in blocks: (B, N, T, H) to (B, N, G, b, H)."""
        # Empty slots are read for nothing: no output is taken from them, so the gradient may skip them.
        num_blocks = shape(self.cluster_of_block)[-1]
        rows = take_unique_rows(x, self.tokens, self.slots)
        return ops.reshape(rows, (*shape(rows)[:2], num_blocks, -1, shape(rows)[-1]))

    def of_clusters(self, x: Tensor) -> Tensor:
        """Returns what each block's cluster has: (B, M, C, ...) to (B, N, G, ...)."""
        return take_blocks(x, self.cluster_of_block)

    def restore(self, x: Tensor) -> Tensor:
        """Returns blocks in the order of the tokens, zeros for padding: (B, N, G, b, H) to (B, N, T, H)."""
        rows = join(x, -2, shape(self.tokens)[-1])
        rows = take_unique_rows(rows, self.slots, self.tokens, self.present)
        return ops.where(self.exists[..., None], rows, 0)
