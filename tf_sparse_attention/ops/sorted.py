"""Tokens sorted by (group, position), so that those of a group lie side by side: shared queries and keys."""

from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement, Numbers
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.gather import permute_rows, stable_order, take_numbers
from tf_sparse_attention.ops.grid import window_grid
from tf_sparse_attention.ops.groups import NO_GROUP, groups_of_keys
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor


class SortedGrid(Arrangement):
    """Tokens by (group, position) in the blocks of a window of ranks; queries and keys are the same tokens.

    Args:
        known: pair of dictionaries of what is known of queries and keys, the same of both: "group", int32
            (B or 1, N, T) of `groups_of`.
        batch: B, an integer or a scalar tensor.
        band: keys of a group that a query sees on a side, counting itself.
        causal: whether later keys are hidden.
        lead: 0, or -1 where a query sees the keys before its own alone, see `Arrangement`.
    """

    keeps_token_masks = True
    sorts_tokens = True

    def __init__(self, known: Numbers, batch: Size, band: int, causal: bool, lead: int = 0) -> None:
        groups = known[0]["group"]
        _, heads, length = shape(groups)
        self._known, self._sizes = known, (batch, heads, length)
        groups = ops.broadcast_to(groups, self._sizes)
        self._order, self._inverse = stable_order(groups)
        self.groups = take_numbers(groups, self._order)
        self._grid = window_grid(length, length, band, causal, lead)
        # Rows by identity: those of queries that are keys too are sorted once.
        self._sorted: dict[int, tuple[Tensor, Tensor]] = {}
        self.key_length, self.lead = length, lead
        self.offsets, self.limits = self._grid.offsets, self._grid.limits

    def in_order(self, x: Tensor, axis: int = -2) -> Tensor:
        if axis == -1:
            return take_numbers(ops.broadcast_to(x, self._sizes), self._order)
        if id(x) not in self._sorted:
            self._sorted[id(x)] = x, permute_rows(x, self._order, self._inverse)
        return self._sorted[id(x)][1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.queries(self.in_order(x, axis), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.keys(self.in_order(x, axis), axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self.from_order(self._grid.restore(x, axis))

    def joined(self, x: Tensor) -> Tensor:
        return self._grid.restore(x)

    def from_order(self, x: Tensor) -> Tensor:
        return permute_rows(x, self._inverse, self._order)

    def query_positions(self) -> Tensor:
        return self._grid.queries(self._order, -1)

    def key_positions(self) -> Tensor:
        return self._grid.keys(self._order, -1)

    def distances(self) -> Distances:
        return Distances(self.offsets, tokens=self.apart())

    def known(self, numbers: Numbers) -> Numbers:
        if numbers is not self._known:
            return super().known(numbers)
        # The padding of the grid is 0, equal to no query's group, and ranks are those of the sorted order: constants.
        query_ranks, key_ranks = self._grid.rule_positions(1)
        return (
            {"group": self._grid.queries(self.groups, -1)[..., :, None], "rank": query_ranks},
            {"group": self._grid.keys(groups_of_keys(self.groups), -1)[..., None, :], "rank": key_ranks},
        )

    def row_has_key(self) -> Tensor | None:
        if self.lead:
            return None
        return self._grid.queries(self.groups != NO_GROUP, -1)[..., None]  # a token that exists sees itself
