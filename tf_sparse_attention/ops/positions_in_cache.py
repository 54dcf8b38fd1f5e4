"""Rotary positions that are counted inside of a cache."""

import dataclasses

from keras import ops

from tf_sparse_attention.ops.blocks import in_range
from tf_sparse_attention.ops.positions import Rotary
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class RotaryInCache(Rotary):
    """Rotary positions counted inside of a cache of first and last tokens (Xiao et al. 2024, section 3.2).

    With s first tokens and a window of w, key p of a query at i is at place p if p < s, else at p - max(0, i - w + 1 -
    s): no place is beyond s + w, however long the text is. Keys are kept unturned and turned where they are read.

    Args:
        settings: a `RotarySettings`.
        num_first: s.
        window: w.
        index: i of each row, int32 (B,).
    """

    num_first: int = 0
    window: int = 1
    index: Tensor = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        gap = ops.maximum(self.index - (self.window - 1 + self.num_first), 0)[:, None, None]
        return super().rotate(x, ops.where(positions < self.num_first, positions, positions - gap))

    def _turns(self, positions, frequencies, dtype):
        # Looked up: compilers compute what they are of anew for each head of keys and each half of its channels.
        size = self.num_first + self.window
        tables = super()._turns(ops.arange(size, dtype="int32"), frequencies, dtype)
        return tuple(ops.take(table, in_range(positions, size), axis=0) for table in tables)

    def rotate_written(self, key: Tensor, positions: Tensor) -> Tensor:
        return key

    def rotate_read(self, key: Tensor, positions: Tensor) -> Tensor:
        return self.rotate(key, positions)
