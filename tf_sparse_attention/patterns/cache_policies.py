"""KV-cache policies: which positions the slots of a cache hold."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_numbers, take_positions
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.ring_buffer import ring_positions
from tf_sparse_attention.ops.shapes import are_known, in_range, min_if_known, shape
from tf_sparse_attention.patterns.token_info import TokenInfo
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

    def held(self, place: TokenInfo, lengths: Tensor, num_slots: Size) -> Tensor:
        """Returns the positions that the slots hold after a prompt, int32 (B, 1 or n, S), outside it where none.

        Args:
            place: the `TokenInfo` of the prompt's keys; what is known of them is int32 (B, n, T).
            lengths: int32 (B,), tokens of each row.
            num_slots: S.
        """
        positions = self.slot_positions(num_slots)[None]
        return ops.where(positions < lengths[:, None], positions, -1)[:, None]

    def slot(self, place: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        """Returns the slot of the next token, int32 (B, 1 or n), and where it is kept, bool, or None for everywhere.

        Args:
            place: the `TokenInfo` of the token, (B, 1 or n).
            num_slots: S.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `slot`.")

    def read(self, place: TokenInfo, num_slots: Size) -> Tensor | None:
        """Returns the slots that a query reads, int32 (B, 1 or n, s); None: all.

        Args:
            place: the `TokenInfo` of the query, (B, 1 or n).
            num_slots: S.
        """
        return None


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

    def held(self, place: TokenInfo, lengths: Tensor, num_slots: Size) -> Tensor:
        return ring_positions(num_slots, lengths - 1)[:, None]

    def slot(self, place: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return place.position % num_slots, None


@dataclasses.dataclass(frozen=True)
class Everything(CachePolicy):
    """All positions: position p is in slot p."""

    def num_slots(self, max_length: Size) -> Size:
        return max_length

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return length <= num_slots

    def slot(self, place: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return place.position, None


def _is_whole(size: Size, num_slots: Size) -> bool:
    """Returns whether slots are known to be as many as are ever needed."""
    return isinstance(num_slots, int) and num_slots >= size


class ReadKeys(NamedTuple):
    """The keys that a query reads from an entry.

    Attributes:
        key: (B, n, s, H), turned by positions.
        value: (B, n, s, Hv).
        positions: int32 (1 or B, 1 or n, s), anything where no key exists.
        exists: bool, likewise.
        known: what else is known of the keys in the pattern's own rule, by name, int32 (B, n, s) or what broadcasts.
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    exists: Tensor
    known: Mapping[str, Tensor] = {}


class CrossCachePolicy:
    """What is kept of the other sequence and read of it; by default all is kept as it is.

    Attributes:
        names: of the numbers of keys that the pattern's rule reads, which an entry has in the order of the sequence,
            int32 (B, n, S).
    """

    names: tuple[str, ...] = ()

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: Any) -> dict[str, Tensor]:
        """Returns what is kept.

        Args:
            key: (B, n, S, H), turned by positions.
            value: (B, n, S, Hv).
            mask: bool (B, S), False for keys that no query may see; or None.
            groups: of the keys where content decides, int32 (B, n, S), or their `Members` where groups choose them;
                else None.
        """
        entry = {"key": key, "value": value}
        return entry if mask is None else {**entry, "mask": mask[:, None]}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, index: Tensor) -> dict[str, Tensor]:
        """Returns what is known of a query beside its position, by name, int32 (B, n).

        Args:
            entry: of `entry`.
            group: int32 (B, n, 1), that of the query where content decides; else None.
            index: int32 (B,), the position of the query in its own sequence.
        """
        return {}

    def read(self, entry: Mapping[str, Tensor], place: TokenInfo) -> ReadKeys:
        """Returns the `ReadKeys` of a query at a `TokenInfo`, (B, 1 or n)."""
        raise NotImplementedError(f"{type(self).__name__} must define `read`.")


@dataclasses.dataclass(frozen=True)
class WholeSequence(CrossCachePolicy):
    """All keys."""

    def read(self, entry: Mapping[str, Tensor], place: TokenInfo) -> ReadKeys:
        positions = ops.arange(shape(entry["key"])[2], dtype="int32")[None, None]
        exists = ops.ones((1, 1, 1), "bool")
        return ReadKeys(entry["key"], entry["value"], positions, merge(exists, entry.get("mask")))


@dataclasses.dataclass(frozen=True)
class Run(WholeSequence):
    """The `size` positions from `first` on, a function of the query's position."""

    first: Callable[[Tensor], Tensor]
    size: int

    def read(self, entry: Mapping[str, Tensor], place: TokenInfo) -> ReadKeys:
        length = shape(entry["key"])[2]
        if isinstance(length, int) and length <= self.size:
            return super().read(entry, place)
        positions = self.first(place.position[..., None]) + ops.arange(self.size, dtype="int32")
        exists, mask = ops.logical_and(positions >= 0, positions < length), entry.get("mask")
        if mask is not None:
            exists = ops.logical_and(exists, take_numbers(mask, in_range(positions, length)))
        key, value = (take_positions(entry[name], positions) for name in ("key", "value"))
        return ReadKeys(key, value, positions, exists)
