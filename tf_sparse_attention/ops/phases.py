"""Positions by phase: those a whole number of strides apart lie side by side."""

import dataclasses
from typing import Self

from keras import ops

from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.blocks import arange, are_known, join, shape, split
from tf_sparse_attention.ops.grid import Grid, window_grid
from tf_sparse_attention.types import Size, Tensor


@dataclasses.dataclass(frozen=True)
class PhaseGrid(Arrangement):
    """Positions of one phase, position modulo `stride`, side by side: a reshape and a transpose.

    The positions of a phase, of which each has a row number (position // stride), are one group; with `rows_grid` they
    are cut into the groups of that grid.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, likewise.
        stride: l, an integer.
        rows_grid: a `Grid` of the ceil(T / l) rows of queries and the ceil(S / l) rows of keys, or None.

    Example:
        >>> PhaseGrid(query_length=5, key_length=5, stride=2).key_positions().numpy()
        array([[0, 2, 4],
               [1, 3, 5]], dtype=int32)
    """

    query_length: Size
    key_length: Size
    stride: int
    rows_grid: Grid | None = None

    @classmethod
    def of_window(cls, query_length: Size, key_length: Size, stride: int, window: int, causal: bool) -> Self:
        """Returns the phases with a window of so many positions of a phase."""
        queries, keys = (num_rows(length, stride) for length in (query_length, key_length))
        return cls(query_length, key_length, stride, window_grid(queries, keys, window, causal))

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = self._phases(x, axis, self.query_length)
        return rows if self.rows_grid is None else _join_groups(self.rows_grid.queries(rows, axis), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = self._phases(x, axis, self.key_length)
        return rows if self.rows_grid is None else _join_groups(self.rows_grid.keys(rows, axis), axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return join(ops.swapaxes(self._whole_phases(x, axis), axis - 1, axis), axis, self.query_length)

    def _whole_phases(self, x, axis):
        """Returns groups (..., G, t, ...) as (..., l, R, ...), all rows of a phase side by side."""
        if self.rows_grid is None:
            return x
        sizes = shape(x)
        end = len(sizes) + axis - 1
        groups = (self.stride, self.rows_grid.num_blocks)
        return self.rows_grid.restore(ops.reshape(x, sizes[:end] + groups + sizes[end + 1 :]), axis)

    @property
    def limits(self) -> tuple[int, int] | None:  # type: ignore[override]  # computed, where others keep it
        if not are_known(self.query_length, self.key_length) or (
            self.stride > 1 and self.query_length != self.key_length
        ):
            return None
        if self.rows_grid is not None:
            return self.rows_grid.limits
        return 1 - num_rows(self.query_length, self.stride), num_rows(self.key_length, self.stride) - 1

    @property
    def slot_positions(self) -> "PhaseSlots":  # type: ignore[override]  # computed, where others keep it
        return PhaseSlots(self.stride, num_rows(self.query_length, self.stride))

    def in_order(self, x: Tensor, axis: int = -2) -> Tensor:
        return _join_phases(self._phases(x, axis, shape(x)[axis]), axis)

    def joined(self, x: Tensor) -> Tensor:
        return _join_phases(self._whole_phases(x, -2), -2)

    def from_order(self, x: Tensor) -> Tensor:
        batch, heads, _, size = shape(x)
        phases = ops.reshape(x, (batch, heads, self.stride, num_rows(self.query_length, self.stride), size))
        return join(ops.swapaxes(phases, -3, -2), -2, self.query_length)

    def _phases(self, x, axis, length):
        return ops.swapaxes(split(x, self.stride, axis, num_rows(length, self.stride)), axis - 1, axis)

    def query_positions(self) -> Tensor:
        return self._positions(self._query_rows())

    def key_positions(self) -> Tensor:
        return self._positions(self._key_rows())

    def _query_rows(self):
        """Returns the rows of query slots, int32 (G / l, t)."""
        if self.rows_grid is not None:
            return self.rows_grid.query_positions()
        return arange(num_rows(self.query_length, self.stride))[None]

    def _key_rows(self):
        if self.rows_grid is not None:
            return self.rows_grid.key_positions()
        return arange(num_rows(self.key_length, self.stride))[None]

    def _positions(self, rows):
        """Returns the positions of rows (g, t) in all phases, int32 (l g, t)."""
        phases = ops.arange(self.stride, dtype="int32")[:, None, None]
        return ops.reshape(phases + ops.convert_to_tensor(rows) * self.stride, (-1, shape(rows)[-1]))

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        if period != 1:
            return super().rule_positions(period)
        if self.rows_grid is not None:
            return tuple(rows * self.stride for rows in self.rows_grid.rule_positions(1))
        # Computed in the program: a constant of all pairs of rows would be most of its file.
        queries, keys = (
            ops.arange(num_rows(length, self.stride), dtype="int32") * self.stride
            for length in (self.query_length, self.key_length)
        )
        return queries[:, None], keys[None, :]

    def inside(self) -> Tensor:
        inside = self.key_positions() < self.key_length
        if self.rows_grid is not None:
            inside = ops.logical_and(inside, self.key_positions() >= 0)
        return inside[:, None, :]

    def past(self) -> Tensor:
        queries, keys = self.rule_positions(1)
        return keys <= queries

    def own_key(self) -> Tensor:
        queries, keys = self.rule_positions(1)
        return keys == queries


@dataclasses.dataclass(frozen=True)
class PhaseSlots:
    """The positions of the slots of whole phases, one after the other, each of so many `rows`."""

    stride: int
    rows: int

    def __call__(self, slots: Tensor) -> Tensor:
        return slots if self.stride == 1 else slots % self.rows * self.stride + slots // self.rows


def num_rows(length: Size, stride: int) -> Size:
    """Returns how many positions of the first phase a sequence has."""
    return (length + stride - 1) // stride


def _join_groups(x, axis):
    """Returns (..., l, g, t, ...) with t at the negative `axis` as (..., l g, t, ...)."""
    sizes = shape(x)
    end = len(sizes) + axis
    return ops.reshape(x, sizes[: end - 2] + (sizes[end - 2] * sizes[end - 1],) + sizes[end:])


def _join_phases(x, axis):
    """Returns (..., l, R, ...) with R at the negative `axis` as (..., l R, ...)."""
    sizes = shape(x)
    end = len(sizes) + axis
    return ops.reshape(x, sizes[: end - 1] + (sizes[end - 1] * sizes[end],) + sizes[end + 1 :])
