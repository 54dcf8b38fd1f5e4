"""Blocks of queries, each beside the blocks of keys around it."""

import dataclasses

import numpy as np
from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.blocks import are_known, join, pad_axis, shape, slice_axis, split
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class Grid(Arrangement):
    """Query blocks, each beside a run of key blocks: the geometry of every blocked pattern.

    Query block g (positions g b .. g b + b - 1) is paired with the key blocks g - before .. g + after, so that a
    query sees s = (before + 1 + after) b key slots. Cost: O(T s) where dense attention has O(T S).

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, likewise.
        block_size: b, positions in a block of queries and of keys.
        before: key blocks before the own one.
        after: key blocks after the own one.
        lead: keys before the position of the first query, an integer: those of earlier text.
        key_block_size: positions in a block of keys, block g of which goes with block g of the queries whatever their
            sizes are. None: `block_size`.

    Example:
        >>> grid = Grid(query_length=5, key_length=5, block_size=2, before=1, after=0)
        >>> grid.offsets
        array([[-2, -1,  0,  1],
               [-3, -2, -1,  0]])
    """

    query_length: Size
    key_length: Size
    block_size: int
    before: int
    after: int
    lead: int = 0
    key_block_size: int | None = None

    @property
    def key_size(self) -> int:
        """Positions in a block of keys."""
        return self.block_size if self.key_block_size is None else self.key_block_size

    @property
    def limits(self) -> tuple[int, int] | None:  # type: ignore[override]  # computed, where others keep it
        if self.key_size != self.block_size:
            return None
        return self.lead - (self.before + 1) * self.block_size + 1, self.lead + (self.after + 1) * self.block_size - 1

    @property
    def num_blocks(self) -> Size:
        """G, the number of query blocks."""
        return (self.query_length + self.block_size - 1) // self.block_size

    @property
    def width(self) -> int:
        """s, the key slots beside a query block."""
        return (self.before + 1 + self.after) * self.key_size

    @property
    def offsets(self) -> np.ndarray | None:  # type: ignore[override]  # computed, where others keep it
        """Key position minus query position, a constant array (t, s); None if blocks differ in it."""
        if self.key_size != self.block_size:
            return None
        queries, keys = self._positions_in_block()
        return keys - queries

    def _positions_in_block(self):
        """Returns the positions of the first group as constants, int (t, 1) and (1, s)."""
        keys = np.arange(self.width) - self.before * self.key_size
        return np.arange(self.block_size)[:, None], keys[None, :]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return split(x, self.block_size, axis, self.num_blocks)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        num_blocks, reach = self.num_blocks, self.before + 1 + self.after
        missing = self.before * self.key_size - self.lead
        x = pad_axis(x, axis, missing, 0) if missing >= 0 else slice_axis(x, axis, -missing, shape(x)[axis])
        x = split(x, self.key_size, axis, num_blocks + reach - 1)
        shifted = [slice_axis(x, axis - 1, first, first + num_blocks) for first in range(reach)]
        return ops.concatenate(shifted, axis) if reach > 1 else x

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return join(x, axis, self.query_length)

    def joined(self, x: Tensor) -> Tensor:
        return self.restore(x)

    def key_positions(self) -> Tensor:
        starts = (ops.arange(self.num_blocks, dtype="int32") - self.before) * self.key_size + self.lead
        return starts[:, None] + ops.arange(self.width, dtype="int32")

    def query_positions(self) -> Tensor:
        starts = ops.arange(self.num_blocks, dtype="int32") * self.block_size
        return starts[:, None] + ops.arange(self.block_size, dtype="int32")

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        if self._repeats(period):
            return self._positions_in_block()
        return self.query_positions()[..., :, None], (self.key_positions() - self.lead)[..., None, :]

    def _repeats(self, period):
        """Whether a rule of this period says the same of every group."""
        if self.key_size == self.block_size and period is not None and self.block_size % period == 0:
            return True
        return isinstance(self.query_length, int) and self.num_blocks == 1

    def inside(self) -> Tensor:
        positions = self.key_positions()
        return ops.logical_and(positions >= 0, positions < self.key_length)[:, None, :]


def window_grid(query_length: Size, key_length: Size, window: int, causal: bool, lead: int = 0) -> Grid:
    """Returns the `Grid` that covers an exact window at the least cost, whatever block size a user has in mind.

    Half the window to a block, between 16 and 128: smaller blocks waste fewer keys outside the band, larger ones make
    larger matrix products. A window of 256 computes 384 key slots a query.
    """
    block_size = 16
    while block_size < 128 and 2 * block_size < window:
        block_size *= 2
    before = -(-(window - 1) // block_size)
    return Grid(query_length, key_length, block_size, before, 0 if causal else before, lead)


def block_grid(
    query_length: Size,
    key_length: Size,
    block_size: int,
    before: int,
    after: int,
    causal: bool,
    lead: int = 0,
    key_block_size: int | None = None,
) -> Grid:
    """Returns the `Grid` of local blocks; a sequence known to be shorter than a block is one block of its own."""
    if key_block_size not in (None, block_size):
        return Grid(query_length, key_length, block_size, before, after, lead, key_block_size)
    if are_known(query_length, key_length) and lead == 0 and max(query_length, key_length) <= block_size:
        return Grid(query_length, key_length, max(query_length, key_length), 0, 0)
    return Grid(query_length, key_length, block_size, before, 0 if causal else after, lead)
