"""Strided and dilated attention: positions a multiple of the stride apart."""

import dataclasses
from typing import Self

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.ring_buffer import ring_positions
from tf_sparse_attention.ops.shapes import arange, are_known, join, min_if_known, shape, split
from tf_sparse_attention.patterns.arrangement import Arrangement, Grid, window_grid
from tf_sparse_attention.patterns.cache_policies import CachePolicy, _is_whole
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Stride(Pattern):
    """Every `stride`-th position, counted from the query: (i - j) mod stride = 0. O(T^2 / stride).

    Source: Child et al. 2019, section 4.3.

    Args:
        stride: l, about the square root of the length, or the length of a row of an image.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    stride: int
    period = 1

    def __post_init__(self) -> None:
        checks.check_count("stride", self.stride)

    @property
    def reach(self) -> int:
        return self.stride

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        return (query.position - key.position) % self.stride == 0

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return PhaseGrid(call.query_length, call.key_length, self.stride)

    def cache(self) -> CachePolicy:
        return PhaseRings(self.stride)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Dilated(Pattern):
    """The `window` nearest positions a whole number of `dilation`s away, on a side and counting the query. O(T window).

    i - j is a multiple of d with |i - j| < window d, and in a causal call j <= i. Source: WaveNet's dilation (van den
    Oord et al. 2016) as attention, Longformer (Beltagy et al. 2020, section 3.1).

    Args:
        window: positions on a side, counting the query itself.
        dilation: d, the distance from one to the next.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    window: int
    dilation: int
    period = 1

    def __post_init__(self) -> None:
        checks.check_count("window", self.window)
        checks.check_count("dilation", self.dilation)

    @property
    def reach(self) -> int:
        return (self.window - 1) * self.dilation

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        apart = query.position - key.position
        return apart % self.dilation == 0, abs(apart) < self.window * self.dilation

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return PhaseGrid.of_window(call.query_length, call.key_length, self.dilation, self.window, call.causal)

    def cache(self) -> CachePolicy:
        return PhaseRings(self.dilation, self.window)


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

    @property
    def is_exact(self) -> bool:  # type: ignore[override]  # computed, where others keep it
        return self.rows_grid is None

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


@dataclasses.dataclass(frozen=True)
class PhaseRings(CachePolicy):
    """For each phase, position modulo `stride`, its last `size` positions.

    Args:
        stride: phases of a row; a query reads those of its own.
        size: positions of a phase that are kept. None: all of them.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    stride: int
    size: int | None = None

    def __post_init__(self) -> None:
        checks.check_count("stride", self.stride)
        checks.check_optional_count("size", self.size)

    @property
    def is_bounded(self) -> bool:  # type: ignore[override]  # computed, where others keep it
        return self.size is not None

    def num_slots(self, max_length: Size) -> Size:
        rows = -(-max_length // self.stride)
        return min_if_known(self.stride, max_length) * (rows if self.size is None else min_if_known(self.size, rows))

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return (self.size is not None and _is_whole(self.stride * self.size, num_slots)) or length <= num_slots

    def _sizes(self, num_slots: Size) -> tuple[Size, Size]:
        """Returns the phases that occur, and the slots of each."""
        phases = min_if_known(self.stride, num_slots)
        return phases, num_slots // phases

    def held(self, place: TokenInfo, lengths: Tensor, num_slots: Size) -> Tensor:
        phases, rows = self._sizes(num_slots)
        phase = ops.arange(phases, dtype="int32")
        last = (lengths[:, None] - 1 - phase) // self.stride  # the last row of each phase, -1 where there is none
        positions = phase[:, None] + self.stride * ring_positions(rows, last)  # (B, phases, rows)
        return ops.reshape(positions, (-1, 1, num_slots))

    def slot(self, place: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        _, rows = self._sizes(num_slots)
        return place.position % self.stride * rows + place.position // self.stride % rows, None

    def read(self, place: TokenInfo, num_slots: Size) -> Tensor | None:
        if self.stride == 1:
            return None  # a copy of the whole cache would take longer than attending to it
        _, rows = self._sizes(num_slots)
        return place.position[..., None] % self.stride * rows + ops.arange(rows, dtype="int32")
