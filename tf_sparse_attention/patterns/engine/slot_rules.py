"""The rules of patterns as kernels ask them: of slots in the order of an arrangement, and of what is known of them."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tf_sparse_attention.patterns.pattern import Pattern, rule_conditions
from tf_sparse_attention.patterns.token_info import Place
from tf_sparse_attention.types import Tensor

Pair: TypeAlias = tuple[Tensor, Tensor]  # of queries and of keys


@dataclasses.dataclass(frozen=True)
class SlotRule:
    """Whether a query slot sees a key slot of its group, in the order of an arrangement.

    Attributes:
        pattern: the `Pattern` whose rule it is.
        causal: whether later keys are hidden.
        lead: see `Arrangement`; so is `slot_positions`.
        hides_self: whether a query never sees the key of its own position.
        slot_positions: function of slots to positions, or None.
        key_length: positions of keys, with `slot_positions`, since there may be more slots.
        excluded: patterns that go by positions, whose pairs are left out.
        num_keys: only the first `num_keys` keys can be visible. None: any key.
    """

    pattern: Pattern
    causal: bool
    lead: int
    hides_self: bool = False
    slot_positions: Callable | None = None
    key_length: int | None = None
    excluded: tuple[Pattern, ...] = ()
    num_keys: int | None = None

    @property
    def period(self) -> int | None:
        """By how many slots a query and a key can move together without a change; None: by none."""
        patterns = (self.pattern, *self.excluded)
        periods = [pattern.period for pattern in patterns if pattern.period is not None]
        if self.slot_positions is not None or self.key_length is not None or len(periods) < len(patterns):
            return None
        return math.lcm(*periods)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        if self.slot_positions is not None:
            query, key = self.slot_positions(query), self.slot_positions(key)
        key = key - self.lead
        # In one group, whose ranks are in the order of the slots.
        places = [Place(slot, 0, {"group": 0, "rank": slot}) for slot in (query, key)]
        conditions = list(rule_conditions(self.pattern, *places))
        conditions += [~_all(rule_conditions(pattern, *places)) for pattern in self.excluded]
        if self.causal:
            conditions.append(key <= query)
        if self.hides_self:
            conditions.append(key != query)
        if self.key_length is not None:
            conditions.append(key < self.key_length)
        return _all(conditions) if conditions else True


@dataclasses.dataclass(frozen=True)
class AnyRule:
    """Whether one of some `SlotRule` lets a query slot see a key slot."""

    rules: tuple[SlotRule, ...]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return functools.reduce(operator.or_, (rule(query, key) for rule in self.rules))


@dataclasses.dataclass(frozen=True)
class EverySlot:
    """That a query slot sees each key slot."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return True


@dataclasses.dataclass(frozen=True)
class OwnSlot:
    """Whether a key slot has the position of a query slot; `lead` as in `Arrangement`."""

    lead: int = 0

    def __call__(self, slots: Pair, numbers: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        return slots[1] - self.lead == slots[0]


class Number(NamedTuple):
    """What one of the numbers of a slot is.

    Attributes:
        name: "position", "order" (see `Arrangement`), "group" (the document, or the group of an arrangement), or what a
            pattern calls it.
        leaf: the number of the leaf whose pattern calls it so, or None.
    """

    name: str
    leaf: int | None = None


GROUP, POSITION, ORDER = Number("group"), Number("position"), Number("order")


@dataclasses.dataclass(frozen=True)
class NumberRule:
    """Whether what is known of two slots lets the pair attend.

    Attributes:
        of_queries, of_keys: tuples of `Number`, what the numbers of either are, in their order.
        own: patterns and their numbers as leaves, whose rules are asked.
        excluded: likewise, those whose pairs are left out.
        hides_self: whether a query never sees the key of its own position.
    """

    of_queries: tuple[Number, ...]
    of_keys: tuple[Number, ...]
    own: tuple[tuple[Pattern, int], ...] = ()
    excluded: tuple[tuple[Pattern, int], ...] = ()
    hides_self: bool = False

    def __call__(self, query: Sequence[Tensor], key: Sequence[Tensor]) -> Tensor:
        known = [dict(zip(*each, strict=True)) for each in ((self.of_queries, query), (self.of_keys, key))]
        conditions = [condition for leaf in self.own for condition in _conditions(leaf, known)]
        conditions += [~_all(_conditions(leaf, known)) for leaf in self.excluded]
        if GROUP in self.of_queries:
            conditions.append(known[0][GROUP] == known[1][GROUP])
        if ORDER in self.of_queries:
            conditions.append(known[1][ORDER] <= known[0][ORDER])
        if self.hides_self:
            conditions.append(known[1][POSITION] != known[0][POSITION])
        return _all(conditions) if conditions else True


@dataclasses.dataclass(frozen=True)
class OwnPosition:
    """Whether a key has the position of a query; which of the numbers of either that is."""

    of_queries: int
    of_keys: int

    def __call__(self, slots: Pair, numbers: tuple[Sequence[Tensor], Sequence[Tensor]]) -> Tensor:
        own, other = numbers
        return own[self.of_queries] == other[self.of_keys]


def _conditions(leaf, known):
    """Returns what the rule of a leaf says of queries and keys of which numbers are known."""
    pattern, index = leaf
    places = (
        Place(x.get(POSITION, 0), 0, {number.name: at for number, at in x.items() if number.leaf == index})
        for x in known
    )
    return rule_conditions(pattern, *places)


def _all(conditions):
    return functools.reduce(operator.and_, conditions)
