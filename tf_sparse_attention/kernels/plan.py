"""What kernels are made for: which pairs of slots attend, and which blocks of slots have such pairs."""

import functools
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from tf_sparse_attention.kernels.choice import SlotPairs, SpanRule
from tf_sparse_attention.kernels.rules import visible_blocks


class Plan(NamedTuple):
    """What a kernel is made for: `SlotPairs` without its arrays, and sizes.

    Attributes:
        rule, limits, last, span, soft_cap: see `SlotPairs`.
        of_numbers: the rule of `SlotNumbers`, or None.
        query_numbers: how many numbers are known of each query, its reach included.
        lengths: slots of queries and of keys.
        blocks: slots of a block of queries and of keys.
        interpret: whether to interpret the kernels, on any device.
    """

    rule: Callable
    limits: tuple[int, int]
    of_numbers: Callable | None
    last: Callable | None
    span: SpanRule | None
    query_numbers: int
    lengths: tuple[int, int]
    blocks: tuple[int, int]
    interpret: bool = False
    soft_cap: float | None = None

    @classmethod
    def of(cls, pairs: SlotPairs, lengths: tuple[int, int], blocks: tuple[int, int], interpret: bool) -> Self:
        """Returns the plan for `SlotPairs`."""
        of_numbers, queries, _ = pairs.numbers or (None, (), ())
        known = len(queries) + (pairs.span is not None)
        rules = pairs.rule, pairs.limits, of_numbers, pairs.last, pairs.span
        return cls(*rules, known, lengths, blocks, interpret, pairs.soft_cap)

    @property
    def asks_of_all(self) -> bool:
        """Whether more than slots decides of a pair, so that no block is known to have all of its pairs whole."""
        return self.of_numbers is not None or self.last is not None or self.span is not None

    @property
    def sizes(self) -> tuple[int, int]:
        """Slots of queries and of keys in whole blocks."""
        queries, keys = (-(-length // block) * block for length, block in zip(self.lengths, self.blocks, strict=True))
        return queries, keys


class Table(NamedTuple):
    """For each block of one side, which blocks of the other have visible pairs.

    Attributes:
        counts: int32 (blocks, 2), how many of them have hidden pairs too, and how many there are.
        numbers: int32 (blocks, most), their numbers, those with hidden pairs first; then the last of them again.
    """

    counts: np.ndarray
    numbers: np.ndarray


@functools.lru_cache(maxsize=64)  # forward pass and gradient of the queries have the same
def table_of(plan: Plan, by_keys: bool = False) -> Table:
    """Returns the `Table` of the blocks of queries, or of those of keys."""
    some, whole = visible_blocks(plan.rule, plan.limits, plan.lengths, plan.blocks)
    if plan.asks_of_all:
        whole = np.zeros_like(whole)
    if by_keys:
        some, whole = some.T, whole.T
    numbers = np.zeros((len(some), max(int(some.sum(1).max(initial=0)), 1)), "int32")
    for row, seen, complete in zip(numbers, some, whole, strict=True):
        ordered = [*np.flatnonzero(seen & ~complete), *np.flatnonzero(complete)]
        row[: len(ordered)], row[len(ordered) :] = ordered, ordered[-1] if ordered else 0
    return Table(np.stack([(some & ~whole).sum(1), some.sum(1)], axis=-1).astype("int32"), numbers)


def kinds_of_numbers(plan: Plan, count: int, side: int, other: str) -> list[str]:
    """Returns the kind of each of so many arrays of numbers, of queries and then of keys, for a program of one side."""
    return ["own" if (at < plan.query_numbers) == (side == 0) else other for at in range(count)]
