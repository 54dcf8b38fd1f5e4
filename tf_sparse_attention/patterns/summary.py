"""Summary columns of blocks, and the first tokens of a sequence."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import Arrangement
from tf_sparse_attention.ops.columns import ColumnGrid, Columns, FirstGrid, column_runs
from tf_sparse_attention.ops.documents import DocumentGrid
from tf_sparse_attention.patterns.caches import ColumnSlots, FirstSlots
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class Summary(Pattern):
    """The last `num_summary` positions of every block of `block_size`. O(T^2 num_summary / block_size).

    Source: Child et al. 2019, section 4.3 ("fixed" attention).

    Args:
        block_size: l, positions of a block.
        num_summary: c, columns of a block that every query sees.
        group: g; the columns are l - (g + 1) c .. l - g c - 1, so that heads can see different ones. Default 0.

    Raises:
        ValueError: for a wrong argument, and for more columns than a block has.
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
    def columns(self) -> Columns:
        """The `Columns` of each block."""
        first = self.block_size - (self.group + 1) * self.num_summary
        return Columns(self.block_size, first, self.num_summary)

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        column = key.position % self.block_size - self.columns.first
        return column >= 0, column < self.num_summary

    def arrange(self, call: Call, known: Known = None) -> list[ColumnGrid]:
        return column_runs(call.query_length, call.key_length, self.columns, call.causal)

    def cache(self) -> ColumnSlots:
        return ColumnSlots(self.columns)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class First(Pattern):
    """The first `count` tokens of the sequence; of packed documents those of the query's own. O(T count).

    With a window it is the streaming pattern with attention sinks (Xiao et al. 2024): `Window(256) | First(4)`. A
    document is a run of equal `segment_ids`.

    Args:
        count: tokens.
        per_document: whether packed documents have first tokens of their own. Default True.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    count: int
    per_document: bool = True

    def __post_init__(self) -> None:
        checks.check_count("count", self.count)
        checks.check_switch("per_document", self.per_document)

    @property
    def uses_starts(self) -> bool:
        return self.per_document

    @property
    def reach(self) -> int:
        return self.count

    def visible(self, query: Place, key: Place) -> tuple[Tensor, ...]:
        offset = key.position - key.start
        return offset >= 0, offset < self.count, key.start == query.start

    def arrange(self, call: Call, known: Known = None) -> Arrangement:
        if call.starts is None or not self.per_document:
            return FirstGrid(call.query_length, call.key_length, self.count)
        return DocumentGrid(call.query_length, call.starts, self.count, call.causal)

    def cache(self) -> FirstSlots:
        return FirstSlots(self.count)
