"""What decoding keeps of a sequence: a few policies, each a rule for which slots hold which positions.

A policy says how many slots there are (`num_slots`), for how many positions they are enough (`holds`), which positions
they hold after a prompt (`held`), where the next token goes (`slot`) and which slots a query reads (`read`). What the
slots hold beside keys and values, and the attention to it, is `patterns.engine.decoding`'s, and which of the keys read
a query sees is the pattern's own rule.
"""

import dataclasses
from collections.abc import Mapping

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.blocks import are_known, in_range, min_if_known, shape
from tf_sparse_attention.ops.columns import Columns
from tf_sparse_attention.ops.gather import stable_order, take_numbers
from tf_sparse_attention.ops.ring_buffer import ring_positions
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Size, Tensor


class CachePolicy:
    """Which slots hold which positions; by default every slot holds a position of its own, from 0 on.

    Attributes:
        is_bounded: whether no sequence, however long, needs more than so many slots.
        shares_reads: whether heads that share keys read the same slots, which are then read once.
    """

    is_bounded = False
    shares_reads = False

    def num_slots(self, max_length: Size) -> Size:
        """Returns how many slots are needed, an integer, or a scalar tensor where `max_length` is one."""
        raise NotImplementedError(f"{type(self).__name__} must define `num_slots`.")

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        """Returns whether so many slots are enough for a sequence.

        Args:
            length: positions from the first on, an integer, or int32 (B,).
            num_slots: S, of `num_slots` for another length.

        Returns:
            A boolean, or a tensor bool (B,); True where it cannot be known.
        """
        return self.num_slots(length) <= num_slots if are_known(length, num_slots) else True

    def slot_positions(self, num_slots: Size) -> Tensor:
        """Returns the position that each slot is for, int32 (S,), of a policy whose slots are never used again."""
        return ops.arange(num_slots, dtype="int32")

    def held(self, place: Place, lengths: Tensor, num_slots: Size) -> Tensor:
        """Returns the positions that the slots hold after a prompt, int32 (B, 1 or n, S), outside it where none.

        Args:
            place: the `Place` of the prompt's keys; what is known of them is int32 (B, n, T).
            lengths: int32 (B,), tokens of each row.
            num_slots: S.
        """
        positions = self.slot_positions(num_slots)[None]
        return ops.where(positions < lengths[:, None], positions, -1)[:, None]

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        """Returns the slot of the next token, int32 (B, 1 or n), and where it is kept, bool, or None for everywhere.

        Args:
            place: the `Place` of the token, (B, 1 or n).
            num_slots: S.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `slot`.")

    def read(self, place: Place, num_slots: Size) -> Tensor | None:
        """Returns the slots that a query reads, int32 (B, 1 or n, s); None: all.

        Args:
            place: the `Place` of the query, (B, 1 or n).
            num_slots: S.
        """
        return None

    def empty_digest(self, keys: Tensor) -> dict[str, Tensor]:
        """Returns what is kept beside the keys (B, n, S, H), by name, for queries that choose among them."""
        return {}

    def digest_of_prompt(self, entry: Mapping[str, Tensor], key: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Returns the digest after a prompt of turned keys (B, n, T, H), of which `lengths` (B,) exist."""
        return {}

    def digest_of_next(
        self, entry: Mapping[str, Tensor], key: Tensor, place: Place, kept: Tensor | None
    ) -> dict[str, Tensor]:
        """Returns the digest after a token of key (B, n, 1, H) at a `Place`, in the rows `kept` (B, 1 or n)."""
        return {}

    def choose(self, entry: Mapping[str, Tensor], query: Tensor, place: Place) -> dict[str, Tensor]:
        """Returns what a query (B, n, 1, H) at a `Place` chose, (B, n) by name, where `queries_choose`."""
        raise NotImplementedError(f"{type(self).__name__} must define `choose`.")


@dataclasses.dataclass(frozen=True)
class Ring(CachePolicy):
    """The last `size` positions: position p is in slot p mod size.

    Args:
        size: positions of a row that are kept.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    size: int
    is_bounded = True

    def __post_init__(self) -> None:
        checks.check_count("size", self.size)

    def num_slots(self, max_length: Size) -> Size:
        return min_if_known(self.size, max_length)

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return _is_whole(self.size, num_slots) or length <= num_slots

    def held(self, place: Place, lengths: Tensor, num_slots: Size) -> Tensor:
        return ring_positions(num_slots, lengths - 1)[:, None]

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return place.position % num_slots, None


@dataclasses.dataclass(frozen=True)
class Everything(CachePolicy):
    """All positions: position p is in slot p."""

    def num_slots(self, max_length: Size) -> Size:
        return max_length

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return length <= num_slots

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return place.position, None


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

    def held(self, place: Place, lengths: Tensor, num_slots: Size) -> Tensor:
        phases, rows = self._sizes(num_slots)
        phase = ops.arange(phases, dtype="int32")
        last = (lengths[:, None] - 1 - phase) // self.stride  # the last row of each phase, -1 where there is none
        positions = phase[:, None] + self.stride * ring_positions(rows, last)  # (B, phases, rows)
        return ops.reshape(positions, (-1, 1, num_slots))

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        _, rows = self._sizes(num_slots)
        return place.position % self.stride * rows + place.position // self.stride % rows, None

    def read(self, place: Place, num_slots: Size) -> Tensor | None:
        if self.stride == 1:
            return None  # a copy of the whole cache would take longer than attending to it
        _, rows = self._sizes(num_slots)
        return place.position[..., None] % self.stride * rows + ops.arange(rows, dtype="int32")


@dataclasses.dataclass(frozen=True)
class GroupRings(CachePolicy):
    """For each of `num_groups` groups its last `size` tokens: that of rank r in group g in slot g size + r mod size."""

    num_groups: int
    size: int
    is_bounded = True

    def num_slots(self, max_length: Size) -> Size:
        return self.num_groups * min_if_known(self.size, max_length)

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return _is_whole(self.num_groups * self.size, num_slots) or length <= num_slots // self.num_groups

    def held(self, place: Place, lengths: Tensor, num_slots: Size) -> Tensor:
        groups, size = place.group, num_slots // self.num_groups
        batch, heads, length = shape(groups)
        order, _ = stable_order(groups)
        count = group_counts(groups, self.num_groups)
        first = ops.cumsum(count, axis=-1) - count
        ranks = ring_positions(size, count - 1)  # (B, n, K, size)
        at = ops.reshape(first[..., None] + ranks, (batch, heads, num_slots))
        positions = take_numbers(order, in_range(at, length))
        return ops.where(ops.reshape(ranks, (batch, heads, num_slots)) >= 0, positions, -1)

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        size = num_slots // self.num_groups
        return place.group * size + place.rank % size, None

    def read(self, place: Place, num_slots: Size) -> Tensor:
        size = num_slots // self.num_groups
        return place.group[..., None] * size + ops.arange(size, dtype="int32")


@dataclasses.dataclass(frozen=True)
class ColumnSlots(CachePolicy):
    """The columns of every block."""

    columns: Columns

    def num_slots(self, max_length: Size) -> Size:
        return self.columns.num_blocks(max_length) * self.columns.count

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return length <= num_slots // self.columns.count * self.columns.block_size

    def slot_positions(self, num_slots: Size) -> Tensor:
        return self.columns.positions(num_slots // self.columns.count)

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        column = place.position % self.columns.block_size - self.columns.first
        block = place.position // self.columns.block_size
        kept = ops.logical_and(column >= 0, column < self.columns.count)
        return block * self.columns.count + in_range(column, self.columns.count), kept


@dataclasses.dataclass(frozen=True)
class FirstSlots(CachePolicy):
    """The first `count` positions."""

    count: int
    is_bounded = True

    def num_slots(self, max_length: Size) -> Size:
        return min_if_known(self.count, max_length)

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return _is_whole(self.count, num_slots) or length <= num_slots

    def slot(self, place: Place, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return in_range(place.position, num_slots), place.position < num_slots


def _is_whole(size: Size, num_slots: Size) -> bool:
    """Returns whether slots are known to be as many as are ever needed."""
    return isinstance(num_slots, int) and num_slots >= size


def group_counts(groups: Tensor, num_groups: int) -> Tensor:
    """Returns how many tokens each group has, int32 (B, n, K) of (B, n, T); groups from K on are not counted."""
    batch, heads, _ = shape(groups)
    rows = ops.reshape(ops.arange(batch * heads, dtype="int32"), (batch, heads, 1)) * (num_groups + 1)
    index = ops.reshape(rows + ops.minimum(groups, num_groups), (-1,))
    total = batch * heads * (num_groups + 1)
    count = ops.segment_sum(ops.ones_like(index), index, num_segments=total)
    return ops.reshape(count, (batch, heads, num_groups + 1))[..., :num_groups]
