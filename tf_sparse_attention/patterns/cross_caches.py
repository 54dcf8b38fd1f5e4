"""What decoding keeps of another, complete sequence, and what a query reads of it: a few policies.

An entry of a cache is a dictionary of tensors: "key" and "value", and what else a policy keeps. Which of the keys read
a query sees is the pattern's own rule; the attention to them is `patterns.engine.cross_decoding`'s.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from keras import ops

from tf_sparse_attention.ops.blocks import in_range, min_if_known, shape
from tf_sparse_attention.ops.gather import (
    stable_order,
    take_blocks,
    take_members,
    take_numbers,
    take_positions,
    take_rows,
)
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.groups import NO_GROUP
from tf_sparse_attention.ops.masks import merge
from tf_sparse_attention.ops.members import cluster_sets, membership, own_cluster_sets, set_names
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


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

    def read(self, entry: Mapping[str, Tensor], place: Place) -> ReadKeys:
        """Returns the `ReadKeys` of a query at a `Place`, (B, 1 or n)."""
        raise NotImplementedError(f"{type(self).__name__} must define `read`.")


@dataclasses.dataclass(frozen=True)
class WholeSequence(CrossCachePolicy):
    """All keys."""

    def read(self, entry: Mapping[str, Tensor], place: Place) -> ReadKeys:
        positions = ops.arange(shape(entry["key"])[2], dtype="int32")[None, None]
        exists = ops.ones((1, 1, 1), "bool")
        return ReadKeys(entry["key"], entry["value"], positions, merge(exists, entry.get("mask")))


@dataclasses.dataclass(frozen=True)
class Run(WholeSequence):
    """The `size` positions from `first` on, a function of the query's position."""

    first: Callable[[Tensor], Tensor]
    size: int

    def read(self, entry: Mapping[str, Tensor], place: Place) -> ReadKeys:
        length = shape(entry["key"])[2]
        if isinstance(length, int) and length <= self.size:
            return super().read(entry, place)
        positions = self.first(place.position[..., None]) + ops.arange(self.size, dtype="int32")
        exists, mask = ops.logical_and(positions >= 0, positions < length), entry.get("mask")
        if mask is not None:
            exists = ops.logical_and(exists, take_numbers(mask, in_range(positions, length)))
        key, value = (take_positions(entry[name], positions) for name in ("key", "value"))
        return ReadKeys(key, value, positions, exists)


@dataclasses.dataclass(frozen=True)
class GroupRun(CrossCachePolicy):
    """The `size` keys of the query's group up to its position, and as many after it.

    Keys and values are kept sorted by (group, position): "order" int32 (B, n, S) are the positions of the sorted ones;
    "group" and "rank" are those of the keys in their order.
    """

    size: int

    names = ("group", "rank")

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: Any) -> dict[str, Tensor]:
        groups = groups if mask is None else ops.where(mask[:, None], groups, NO_GROUP)
        order, inverse = stable_order(groups)
        rows = {"key": take_rows(key, order), "value": take_rows(value, order)}
        return {**rows, "order": order, "group": groups, "rank": inverse}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, index: Tensor) -> dict[str, Tensor]:
        groups = repeat_key_heads(entry["group"], group.shape[1])  # type: ignore[union-attr]  # content decides
        earlier = ops.arange(shape(groups)[-1], dtype="int32") <= index[:, None, None]
        passed = ops.logical_or(groups < group, ops.logical_and(groups == group, earlier))
        last = ops.sum(ops.cast(passed, "int32"), axis=-1) - 1
        return {"group": group[..., 0], "rank": last}  # type: ignore[index]  # content decides

    def read(self, entry: Mapping[str, Tensor], place: Place) -> ReadKeys:
        length = shape(entry["key"])[2]
        size = min_if_known(self.size, length)
        at = place.rank[..., None] + ops.arange(1 - size, size, dtype="int32")
        positions = take_numbers(entry["order"], in_range(at, length))
        key, value = (take_positions(entry[name], at) for name in ("key", "value"))
        return ReadKeys(key, value, positions, ops.logical_and(at >= 0, at < length))


@dataclasses.dataclass(frozen=True)
class ChosenRows(CrossCachePolicy):
    """The keys that the query's group chose.

    Those of each of K groups are kept side by side: "key" (B, n, K, w, H), "value" and "position" (B, n, K, w), and,
    if some have fewer than w, "mask" likewise. "clusters_0" .. are the groups of each key, see `cluster_sets`.
    """

    num_groups: int

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]  # computed, where others keep it
        return set_names(self.num_groups)

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: Any) -> dict[str, Tensor]:
        positions, valid = groups
        entry = {"key": take_members(key, positions), "value": take_members(value, positions), "position": positions}
        entry |= cluster_sets(membership(groups, shape(key)[2]))
        return entry if valid is None else {**entry, "mask": valid}

    def query(self, entry: Mapping[str, Tensor], group: Tensor | None, index: Tensor) -> dict[str, Tensor]:
        own = own_cluster_sets(group, self.num_groups) | {"group": group}
        passed = _of_group(entry["position"], group) <= index[:, None, None]
        if "mask" in entry:
            passed = ops.logical_and(passed, _of_group(entry["mask"], group))
        last = ops.sum(ops.cast(passed, "int32"), axis=-1) - 1
        return {"rank": last, **{name: x[..., 0] for name, x in own.items()}}

    def read(self, entry: Mapping[str, Tensor], place: Place) -> ReadKeys:
        found = {name: _of_group(x, place.group[..., None]) for name, x in entry.items() if name not in self.names}
        ranks = ops.arange(shape(found["position"])[-1], dtype="int32")[None, None]
        exists = found.get("mask", ops.ones((1, 1, 1), "bool"))
        return ReadKeys(found["key"], found["value"], found["position"], exists, {"rank": ranks})


def _of_group(x: Tensor, group: Tensor | None) -> Tensor:
    """Returns the part of each head's group, (B, n, 1), of an array (B, n, K, ..): (B, n, ..)."""
    return take_blocks(x, group)[:, :, 0]
