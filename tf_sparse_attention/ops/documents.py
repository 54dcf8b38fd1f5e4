"""The first tokens of each packed document beside the queries of that document."""

from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.blocks import in_range, shape
from tf_sparse_attention.ops.gather import take_numbers, take_rows
from tf_sparse_attention.ops.grid import Grid
from tf_sparse_attention.types import Size, Tensor

BLOCK_SIZE = 32


class DocumentGrid(Arrangement):
    """Blocks of queries, each beside itself and the first `count` keys of the document of its first query.

    The queries of a block are of that document or of ones that begin in the block, whose first keys are in the block
    and, if not causal, in the blocks after it. O(T (count + b)) with blocks of b positions.

    Args:
        length: T, an integer or a scalar tensor, the length of queries and keys.
        starts: pair of int32 (B, 1, T), where the documents of queries and keys begin.
        count: first keys of a document.
        causal: whether later keys are hidden.
    """

    def __init__(self, length: Size, starts: tuple[Tensor, Tensor], count: int, causal: bool) -> None:
        self.key_length = length
        after = 0 if causal else -(-(count - 1) // BLOCK_SIZE)
        self._grid = Grid(length, length, BLOCK_SIZE, 0, after)
        self._begins = ops.arange(self._grid.num_blocks, dtype="int32") * BLOCK_SIZE
        batch = shape(starts[0])[0]
        begins = ops.broadcast_to(self._begins[None, None], (batch, 1, self._grid.num_blocks))
        first = take_numbers(starts[0], begins)  # (B, 1, G), where the document of a block's first query begins
        self._first = first[..., None] + ops.arange(count, dtype="int32")  # (B, 1, G, count)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.queries(x, axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        batch, _, num_blocks, count = shape(self._first)
        heads = shape(x)[1]
        index = in_range(ops.broadcast_to(self._first, (batch, heads, num_blocks, count)), self.key_length)
        index = ops.reshape(index, (batch, heads, num_blocks * count))
        x = ops.broadcast_to(x, (batch, *shape(x)[1:]))
        if axis == -1:
            first = ops.reshape(take_numbers(x, index), (batch, heads, num_blocks, count))
        else:
            first = ops.reshape(take_rows(x, index), (batch, heads, num_blocks, count, shape(x)[-1]))
        return ops.concatenate([first, self._grid.keys(x, axis)], axis=axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.restore(x, axis)

    def query_positions(self) -> Tensor:
        return self._grid.query_positions()

    def key_positions(self) -> Tensor:
        return ops.concatenate([self._first, self._near(self._grid.key_positions())], axis=-1)

    def inside(self) -> Tensor:
        # What lies in the block itself is taken from there, so that no key counts twice.
        before = self._first < self._begins[:, None]
        return ops.concatenate([before, self._near(self._grid.inside()[:, 0])], axis=-1)[..., None, :]

    def _near(self, x):
        """Returns (G, s) of the blocks themselves as (B, 1, G, s)."""
        return ops.broadcast_to(x[None, None], (shape(self._first)[0], 1, *shape(x)))
