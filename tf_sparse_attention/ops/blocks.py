"""Sequences cut into blocks, and each block of queries beside the blocks of keys around it."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops


def shape(x):
    """Returns the shape of a tensor: integers where they are known, scalar tensors where they are not."""
    return tuple(ops.shape(x))


def slice_axis(x, axis, start, stop):
    """Returns `x[..., start:stop, ...]` along the (negative) `axis`; the bounds may be tensors, but must lie inside."""
    # Not by indexing: TensorFlow's gradient of that costs more than the attention around it.
    sizes = list(shape(x))
    if is_zero(start) and isinstance(stop, int) and isinstance(sizes[axis], int) and sizes[axis] == stop:
        return x
    begins = [0] * len(sizes)
    begins[axis], sizes[axis] = start, stop - start
    return ops.slice(x, begins, sizes)


def pad_axis(x, axis, before, after):
    """Returns `x` with `before` and `after` zeros (False) on the (negative) `axis`; both may be tensors."""
    if is_zero(before) and is_zero(after):
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, after)
    return ops.pad(x, widths)


def is_zero(number):
    """Returns whether a length is known to be zero; a tensor is not known."""
    return isinstance(number, int) and number == 0


def in_range(index, length):
    """Returns an int tensor with what lies outside 0 .. length - 1 at the nearer end of it."""
    # Not by `ops.clip`: LiteRT's converter takes one to 0 .. 6 for an activation, which it has for floats alone.
    return ops.minimum(ops.maximum(index, 0), length - 1)


def at_least_zero(number):
    """Returns `max(number, 0)` of an integer or a scalar tensor."""
    return max(number, 0) if isinstance(number, int) else ops.maximum(number, 0)


def split(x, block_size, axis, num_blocks):
    """Cuts an axis into `num_blocks` blocks, padding the end with zeros and dropping what is too long.

    Args:
        x: tensor (..., T, ...).
        block_size: positions in a block, an integer.
        axis: the axis of length T, negative.
        num_blocks: G, an integer or a scalar tensor.

    Returns:
        Tensor (..., G, block_size, ...).
    """
    length, total = shape(x)[axis], num_blocks * block_size
    x = slice_axis(pad_axis(x, axis, 0, at_least_zero(total - length)), axis, 0, total)
    sizes = shape(x)
    return ops.reshape(x, sizes[:axis] + (num_blocks, block_size) + sizes[len(sizes) + axis + 1 :])


def join(x, axis, length):
    """Undoes `split`: merges the axes (`axis` - 1, `axis`) and keeps the first `length` positions.

    Args:
        x: tensor (..., G, t, ...).
        axis: the axis of the positions in a block, negative.
        length: positions to keep, an integer or a scalar tensor.

    Returns:
        Tensor (..., length, ...).
    """
    sizes = shape(x)
    end = len(sizes) + axis
    num_blocks, block_size = sizes[end - 1], sizes[end]
    x = ops.reshape(x, sizes[: end - 1] + (num_blocks * block_size,) + sizes[end + 1 :])
    return slice_axis(x, axis, 0, length)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Query blocks, each beside a run of key blocks: the geometry of every blocked pattern.

    Query block g (positions g b .. g b + b - 1) is paired with the key blocks g - before .. g + after, so that a
    query sees s = (before + 1 + after) b key places. Cost: O(T s) where dense attention has O(T S).

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

    query_length: Any
    key_length: Any
    block_size: int
    before: int
    after: int
    lead: int = 0
    key_block_size: int | None = None

    @property
    def key_size(self):
        """Positions in a block of keys."""
        return self.block_size if self.key_block_size is None else self.key_block_size

    @property
    def num_blocks(self):
        """G, the number of query blocks."""
        return (self.query_length + self.block_size - 1) // self.block_size

    @property
    def width(self):
        """s, the key places beside a query block."""
        return (self.before + 1 + self.after) * self.key_size

    @property
    def offsets(self):
        """Key position minus query position, a constant array (t, s); None if blocks differ in it."""
        if self.key_size != self.block_size:
            return None
        keys = np.arange(self.width) - self.before * self.block_size
        return keys[None, :] - np.arange(self.block_size)[:, None]

    def queries(self, x, axis):
        """Returns the queries in blocks: (..., T, ...) to (..., G, t, ...)."""
        return split(x, self.block_size, axis, self.num_blocks)

    def keys(self, x, axis):
        """Returns the keys beside each query block, zeros outside the sequence: (..., S, ...) to (..., G, s, ...)."""
        num_blocks, reach = self.num_blocks, self.before + 1 + self.after
        missing = self.before * self.key_size - self.lead
        x = pad_axis(x, axis, missing, 0) if missing >= 0 else slice_axis(x, axis, -missing, shape(x)[axis])
        x = split(x, self.key_size, axis, num_blocks + reach - 1)
        shifted = [slice_axis(x, axis - 1, first, first + num_blocks) for first in range(reach)]
        return ops.concatenate(shifted, axis) if reach > 1 else x

    def key_positions(self):
        """Returns which key each key place holds, int32 (G, s): negative or >= S outside the sequence."""
        starts = (ops.arange(self.num_blocks, dtype="int32") - self.before) * self.key_size + self.lead
        return starts[:, None] + ops.arange(self.width, dtype="int32")

    def query_positions(self):
        """Returns which query each query place holds, int32 (G, t)."""
        starts = ops.arange(self.num_blocks, dtype="int32") * self.block_size
        return starts[:, None] + ops.arange(self.block_size, dtype="int32")

    def inside(self):
        """Returns where a key place lies inside the sequence, bool (G, 1, s)."""
        positions = self.key_positions()
        return ops.logical_and(positions >= 0, positions < self.key_length)[:, None, :]

    def join(self, x, axis):
        """Returns blocks of queries as one sequence: (..., G, t, ...) to (..., T, ...)."""
        return join(x, axis, self.query_length)
