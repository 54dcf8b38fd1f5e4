"""Queries in blocks of one cluster each, beside the keys that the cluster chose."""

from typing import NamedTuple

from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.cluster_blocks import ClusterBlocks
from tf_sparse_attention.ops.gather import take_member_numbers, take_members, take_numbers
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.members import Members
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor


class ChosenKeys(NamedTuple):
    """The cluster of each query, and the keys that each cluster chose.

    Attributes:
        clusters: int32 (B, N, T), in 0 .. K - 1.
        members: the `Members` of the clusters, of S keys.
        key_length: S, an integer or a scalar tensor.
    """

    clusters: Tensor
    members: Members
    key_length: Size


class MemberBlocks(Arrangement):
    """Queries sorted by cluster, in blocks of one cluster each, beside the members of that cluster: O(T w + K w).

    Args:
        chosen: a `ChosenKeys`.
    """

    is_exact = True
    sorts_tokens = True

    def __init__(self, chosen: ChosenKeys) -> None:
        self._members, self.key_length = chosen.members, chosen.key_length
        self._blocks = ClusterBlocks.of(chosen.clusters, shape(chosen.members.positions)[2])

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.arrange(x)
        return self._in_blocks(take_numbers(_with_heads(x, self._blocks.tokens), self._blocks.tokens))

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -2:
            return self._blocks.of_clusters(take_members(x, self._members.positions))
        positions = self._members.positions
        return self._blocks.of_clusters(take_member_numbers(_with_heads(x, positions), positions))

    def _in_blocks(self, x):
        return ops.reshape(x, (*shape(self._blocks.cluster_of_block), -1))

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._blocks.restore(x)

    def query_positions(self) -> Tensor:
        return self._in_blocks(self._blocks.tokens)

    def key_positions(self) -> Tensor:
        return self._blocks.of_clusters(self._members.positions)

    def inside(self) -> Tensor | None:
        valid = self._members.valid
        return None if valid is None else self._blocks.of_clusters(valid)[..., None, :]

    def distances(self) -> Distances:
        apart, inside = self.apart(), self.inside()
        passed = merge(apart <= 0, inside)
        last = ops.sum(ops.cast(passed, "int32"), axis=-1, keepdims=True) - 1  # rank of the last key up to the query
        ranks = ops.arange(shape(apart)[-1], dtype="int32") - last
        return Distances(ranks=ranks, tokens=apart, pairs=self.pairs)


def _with_heads(x, tokens):
    """Returns numbers (B or 1, N or 1, T) for all heads of `tokens`, as (B, N, T)."""
    return ops.broadcast_to(x, (*shape(tokens)[:2], shape(x)[-1]))
