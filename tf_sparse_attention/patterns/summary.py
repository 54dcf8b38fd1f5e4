"""Fixed attention of the Sparse Transformer: summary columns of every block."""

import dataclasses

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.shapes import are_known, in_range, join, shape, slice_axis, split
from tf_sparse_attention.patterns.arrangement import Arrangement, OneGroup, QueryRuns, query_runs
from tf_sparse_attention.patterns.cache_policies import CachePolicy
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenInfo
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Summary(Pattern):
    """The last `num_summary` positions of every block. O(T^2 num_summary / block_size).

    Source: Child et al. 2019, section 4.3 ("fixed" attention).

    Args:
        block_size: l, positions per block.
        num_summary: c, summary columns per block.
        group: g, which selects the columns l - (g + 1) c .. l - g c - 1. Heads with different groups attend to
            different columns. Default 0.

    Raises:
        ValueError: if an argument is invalid or the columns exceed the block.
    """

    block_size: int
    num_summary: int
    group: int = 0

    def __post_init__(self) -> None:
        checks.check_count("block_size", self.block_size)
        checks.check_count("num_summary", self.num_summary)
        checks.check_count("group", self.group, minimum=0)
        if (self.group + 1) * self.num_summary > self.block_size:
            raise ValueError(
                "`num_summary` times `group` + 1 must be at most `block_size`. Received: "
                f"num_summary={self.num_summary}, group={self.group}, block_size={self.block_size}."
            )

    @property
    def period(self) -> int | None:
        return self.block_size

    @property
    def reach(self) -> int:
        return self.block_size

    @property
    def columns(self) -> "Columns":
        """The summary columns of each block: block size, first column and number of columns."""
        first = self.block_size - (self.group + 1) * self.num_summary
        return Columns(self.block_size, first, self.num_summary)

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        column = key.position % self.block_size - self.columns.first
        return column >= 0, column < self.num_summary

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return column_runs(call.query_length, call.key_length, self.columns, call.causal)

    def cache(self) -> CachePolicy:
        return ColumnSlots(self.columns)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns first .. first + count - 1 of every block of `block_size` positions."""

    block_size: int
    first: int
    count: int

    def take(self, x: Tensor, axis: int) -> Tensor:
        """Select the columns of a sequence: (..., S, ...) to (..., M, ...), M = ceil(S / l) c."""
        num_blocks = self.num_blocks(shape(x)[axis])
        blocks = split(x, self.block_size, axis, num_blocks)
        picked = slice_axis(blocks, axis, self.first, self.first + self.count)
        return join(picked, axis, num_blocks * self.count)

    def num_blocks(self, length: Size) -> Size:
        """Return the number of blocks of a sequence, including an incomplete last one."""
        return (length + self.block_size - 1) // self.block_size

    def positions(self, num_blocks: Size) -> Tensor:
        """Return the positions of the columns of the first `num_blocks` blocks, int32 (num_blocks c,)."""
        number = ops.arange(num_blocks * self.count, dtype="int32")
        return number // self.count * self.block_size + self.first + number % self.count


class ColumnMemo:
    """Columns of tensors, selected once per tensor and shared by all runs of queries."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        # By identity. Holding the tensors keeps their ids unique.
        self._taken: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def take(self, x: Tensor, axis: int) -> Tensor:
        """Return `Columns.take` of a tensor."""
        if (id(x), axis) not in self._taken:
            self._taken[id(x), axis] = x, self.columns.take(x, axis)
        return self._taken[id(x), axis][1]


@dataclasses.dataclass(frozen=True)
class ColumnGrid(OneGroup):
    """The queries start .. stop - 1 with the columns of the first `num_blocks` blocks, as one group."""

    start: Size
    stop: Size
    num_blocks: Size
    memo: ColumnMemo
    key_length: Size

    is_exact = True

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, self.start, self.stop), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        columns = self.memo.take(x, axis)
        return ops.expand_dims(slice_axis(columns, axis, 0, self.num_blocks * self.memo.columns.count), axis - 1)

    def query_positions(self) -> Tensor:
        return ops.arange(self.start, self.stop, dtype="int32")[None]

    def key_positions(self) -> Tensor:
        return self.memo.columns.positions(self.num_blocks)[None]

    def key_exists(self) -> Tensor:
        return (self.key_positions() < self.key_length)[:, None, :]


def column_runs(query_length: Size, key_length: Size, columns: Columns, causal: bool) -> Arrangement:
    """Arrange queries with the summary columns: one run, or in a causal call several runs without later blocks."""
    num_blocks, memo = columns.num_blocks(key_length), ColumnMemo(columns)
    if not (causal and are_known(query_length, key_length)):
        return ColumnGrid(0, query_length, num_blocks, memo, key_length)
    return QueryRuns(
        ColumnGrid(start, stop, min(-(-stop // columns.block_size), num_blocks), memo, key_length)
        for start, stop in query_runs(query_length, columns.block_size)
    )


@dataclasses.dataclass(frozen=True)
class ColumnSlots(CachePolicy):
    """The columns of every block."""

    columns: Columns

    def num_slots(self, max_length: Size) -> Size:
        return self.columns.num_blocks(max_length) * self.columns.count

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return length <= num_slots // self.columns.count * self.columns.block_size

    def slot_positions(self, num_slots: Size) -> Tensor:
        return self.columns.positions(num_slots // self.columns.count)

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        column = token.position % self.columns.block_size - self.columns.first
        block = token.position // self.columns.block_size
        kept = ops.logical_and(column >= 0, column < self.columns.count)
        return block * self.columns.count + in_range(column, self.columns.count), kept
