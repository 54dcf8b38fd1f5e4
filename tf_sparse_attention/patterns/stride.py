"""Strided and dilated attention: keys at multiples of the stride from the query."""

import dataclasses
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import ring_positions
from tf_sparse_attention.ops.shapes import arange, are_known, join, min_if_known, shape, split
from tf_sparse_attention.patterns.arrangement import Arrangement, Grid, window_grid
from tf_sparse_attention.patterns.cache_policies import Buckets, CachePolicy, is_full_size
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import NewTokens, Selection, TokenInfo
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Stride(Pattern):
    """Every `stride`-th position, counted from the query: (i - j) mod stride = 0. O(T^2 / stride).

    Source: Child et al. 2019, section 4.3.

    Args:
        stride: l, about the square root of the length, or the width of an image.

    Raises:
        ValueError: if `stride` is not a positive integer.
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
    """Dilated window: i - j is a multiple of d, and |i - j| < window * d. In a causal call, also j <= i. O(T window).

    Source: Longformer (Beltagy et al. 2020, section 3.1), after the dilation of WaveNet (van den Oord et al. 2016).

    Args:
        window: keys on each side, including the key at the query's position.
        dilation: d, the distance between successive keys.

    Raises:
        ValueError: if an argument is not a positive integer.
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
        distance = query.position - key.position
        return distance % self.dilation == 0, abs(distance) < self.window * self.dilation

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        lengths = call.query_length, call.key_length
        queries, keys = (num_rows(length, self.dilation) for length in lengths)
        return PhaseGrid(*lengths, self.dilation, window_grid(queries, keys, self.window, call.causal))

    def cache(self) -> CachePolicy:
        return PhaseRings(self.dilation, self.window)


@dataclasses.dataclass(frozen=True)
class PhaseGrid(Arrangement):
    """Groups of positions of the same phase, position modulo `stride`: a reshape and a transpose.

    The positions of a phase have row numbers, position // stride. They are one group, or the groups of `rows_grid`.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, an integer or a scalar tensor.
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
    def is_exact(self) -> bool:  # type: ignore[override]  # a property here
        return self.rows_grid is None

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = self._phases(x, axis, self.query_length)
        return rows if self.rows_grid is None else _merge_axes(self.rows_grid.queries(rows, axis), axis - 1)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        rows = self._phases(x, axis, self.key_length)
        return rows if self.rows_grid is None else _merge_axes(self.rows_grid.keys(rows, axis), axis - 1)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        if self.rows_grid is not None:
            sizes = shape(x)
            end = len(sizes) + axis - 1
            groups = (self.stride, self.rows_grid.num_blocks)
            x = self.rows_grid.restore(ops.reshape(x, sizes[:end] + groups + sizes[end + 1 :]), axis)
        return join(ops.swapaxes(x, axis - 1, axis), axis, self.query_length)

    @property
    def limits(self) -> tuple[int, int] | None:  # type: ignore[override]  # a property here
        lengths = self.query_length, self.key_length
        if not are_known(*lengths) or (self.stride > 1 and lengths[0] != lengths[1]):
            return None
        if self.rows_grid is not None:
            return self.rows_grid.limits
        return 1 - num_rows(self.query_length, self.stride), num_rows(self.key_length, self.stride) - 1

    @property
    def slot_positions(self) -> "PhaseSlots":  # type: ignore[override]  # a property here
        return PhaseSlots(self.stride, num_rows(self.query_length, self.stride))

    def to_kernel_order(self, x: Tensor, axis: int = -2) -> Tensor:
        return _merge_axes(self._phases(x, axis, shape(x)[axis]), axis)

    def from_kernel_order(self, x: Tensor) -> Tensor:
        batch, heads, _, size = shape(x)
        phases = ops.reshape(x, (batch, heads, self.stride, num_rows(self.query_length, self.stride), size))
        return join(ops.swapaxes(phases, -3, -2), -2, self.query_length)

    def _phases(self, x, axis, length):
        return ops.swapaxes(split(x, self.stride, axis, num_rows(length, self.stride)), axis - 1, axis)

    def query_positions(self) -> Tensor:
        if self.rows_grid is not None:
            return self._positions(self.rows_grid.query_positions())
        return self._positions(arange(num_rows(self.query_length, self.stride))[None])

    def key_positions(self) -> Tensor:
        if self.rows_grid is not None:
            return self._positions(self.rows_grid.key_positions())
        return self._positions(arange(num_rows(self.key_length, self.stride))[None])

    def _positions(self, rows):
        """Return the positions of rows (g, t) in all phases, int32 (l g, t)."""
        phases = ops.arange(self.stride, dtype="int32")[:, None, None]
        return ops.reshape(phases + ops.convert_to_tensor(rows) * self.stride, (-1, shape(rows)[-1]))

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        if period != 1:
            return super().rule_positions(period)
        if self.rows_grid is not None:
            return tuple(rows * self.stride for rows in self.rows_grid.rule_positions(1))
        # Tensors, not constants: a constant of all pairs of rows would dominate the size of an exported program.
        queries, keys = (
            ops.arange(num_rows(length, self.stride), dtype="int32") * self.stride
            for length in (self.query_length, self.key_length)
        )
        return queries[:, None], keys[None, :]

    def key_exists(self) -> Tensor:
        inside = self.key_positions() < self.key_length
        if self.rows_grid is not None:
            inside = ops.logical_and(inside, self.key_positions() >= 0)
        return inside[:, None, :]

    def causal_mask(self) -> Tensor:
        queries, keys = self.rule_positions(1)
        return keys <= queries

    def self_mask(self) -> Tensor:
        queries, keys = self.rule_positions(1)
        return keys == queries


@dataclasses.dataclass(frozen=True)
class PhaseSlots:
    """Positions of slots ordered by phase, with `rows` slots per phase."""

    stride: int
    rows: int

    def __call__(self, slots: Tensor) -> Tensor:
        return slots if self.stride == 1 else slots % self.rows * self.stride + slots // self.rows


def num_rows(length: Size, stride: int) -> Size:
    """Return the number of positions in the first phase of a sequence."""
    return (length + stride - 1) // stride


def _merge_axes(x, axis):
    """Merge the axes (`axis` - 1, `axis`), with `axis` negative."""
    sizes = shape(x)
    end = len(sizes) + axis
    return ops.reshape(x, sizes[: end - 1] + (sizes[end - 1] * sizes[end],) + sizes[end + 1 :])


@dataclasses.dataclass(frozen=True)
class PhaseRings(CachePolicy):
    """Cache policy with one ring buffer per phase.

    The phase of a position is position mod `stride`. Each buffer holds the last `size` positions of its phase.

    Args:
        stride: number of phases. A query reads the positions of its phase.
        size: positions per phase. None: all.

    Raises:
        ValueError: if an argument is not a positive integer.
    """

    stride: int
    size: int | None = None

    def __post_init__(self) -> None:
        checks.check_count("stride", self.stride)
        checks.check_optional_count("size", self.size)

    @property
    def is_bounded(self) -> bool:  # type: ignore[override]  # a property here
        return self.size is not None

    @property
    def num_visible(self) -> int | None:
        return None if self.size is None else self.stride * self.size

    def num_slots(self, max_length: Size) -> Size:
        rows = -(-max_length // self.stride)
        return min_if_known(self.stride, max_length) * (rows if self.size is None else min_if_known(self.size, rows))

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return (self.size is not None and is_full_size(self.stride * self.size, num_slots)) or length <= num_slots

    def _sizes(self, num_slots: Size) -> tuple[Size, Size]:
        """Return the number of phases that occur and the number of slots per phase."""
        phases = min_if_known(self.stride, num_slots)
        return phases, num_slots // phases

    def with_spare(self, count: int) -> CachePolicy:
        return self if self.size is None else dataclasses.replace(self, size=self.size + -(-count // self.stride))

    def slot_tokens(self, tokens: TokenInfo, new: NewTokens, num_slots: Size) -> Tensor:
        phases, rows = self._sizes(num_slots)
        phase = ops.arange(phases, dtype="int32")
        last = (new.start[:, None] + new.counts[:, None] - 1 - phase) // self.stride  # last row per phase, or -1
        positions = phase[:, None] + self.stride * ring_positions(rows, last)  # (B, phases, rows)
        return ops.reshape(positions - new.start[:, None, None], (-1, 1, num_slots))

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        _, rows = self._sizes(num_slots)
        return token.position % self.stride * rows + token.position // self.stride % rows, None

    def buckets(self, query: TokenInfo, num_slots: Size, selection: Any = None) -> Buckets | None:
        if self.stride == 1:
            return None  # copying the whole cache takes longer than attending to it
        return Buckets((query.position % self.stride)[..., None], self._sizes(num_slots)[1])
