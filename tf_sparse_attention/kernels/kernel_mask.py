"""What the rules of `SlotPairs` say of slots that are known when a program is made: pairs, and blocks of pairs."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from tf_sparse_attention.kernels.availability import SlotPairs, SpanRule


class Blocks(NamedTuple):
    """Pairs of blocks of query and key slots, bool (T / b, S / b') each: those with a visible pair, and with all."""

    some: np.ndarray
    whole: np.ndarray


def evaluate(rule: Callable, query_slots: np.ndarray, key_slots: np.ndarray) -> np.ndarray:
    """Returns what a rule says of slots that are known, while any program is being traced: a bool NumPy array."""
    import jax

    with jax.ensure_compile_time_eval():
        seen = np.asarray(rule(query_slots, key_slots))
    return np.broadcast_to(seen, np.broadcast_shapes(query_slots.shape, key_slots.shape))


def can_ask(rule: Callable, counts: tuple[int, int] | None = None) -> bool:
    """Returns whether a rule can be asked inside a kernel, which has no arrays but its arguments, and can be kept.

    Args:
        rule: a function of two arrays of slots, or of two tuples of numbers.
        counts: how many numbers there are in each; None: a rule of slots.
    """
    try:
        return not _constants_of(rule, counts)
    except TypeError:  # no hash, since it has lists or arrays; or NumPy's functions, which need slots that are known
        return False


@functools.lru_cache(maxsize=64)
def _constants_of(rule, counts):
    """Returns the arrays that a rule holds, besides single numbers."""
    import jax

    slots = jax.ShapeDtypeStruct((128, 128), "int32")
    arguments = (slots, slots) if counts is None else ((slots,) * count for count in counts)
    return jax.make_jaxpr(rule)(*arguments).consts


@functools.lru_cache(maxsize=64)
def visible_blocks(rule: Callable, limits: tuple[int, int], lengths: tuple[int, int], sizes: tuple[int, int]) -> Blocks:
    """Return in which `Blocks` the pairs lie that a rule allows.

    A rule with a `period` is evaluated for one period of queries, one with `num_keys` for the first keys alone, any
    other one for all pairs within `limits`.

    Args:
        rule: as in `SlotPairs`; so are `limits`.
        lengths: slots of queries and of keys; those beyond, in the last blocks, see nothing and are not seen.
        sizes: query and key slots of a block.

    Returns:
        `Blocks`. In a union, a block that no single part covers counts as partly hidden.
    """
    grid = _Grid(limits, lengths, sizes)
    parts = [_blocks_of(part, grid) for part in getattr(rule, "rules", (rule,))]
    return Blocks(*(functools.reduce(np.logical_or, side) for side in zip(*parts, strict=True)))


class _Grid(NamedTuple):
    """The blocks of a sequence; the attributes are the arguments of `visible_blocks`."""

    limits: tuple[int, int]
    lengths: tuple[int, int]
    sizes: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        """The blocks of queries and of keys."""
        counts = [-(-length // size) for length, size in zip(self.lengths, self.sizes, strict=True)]
        return counts[0], counts[1]

    def columns(self, row: int) -> tuple[int, int]:
        """Return the first block of keys within `limits` of a row of blocks, and the one after the last."""
        first = row * self.sizes[0] + self.limits[0]
        last = (row + 1) * self.sizes[0] - 1 + self.limits[1]
        return first // self.sizes[1], last // self.sizes[1] + 1

    def evaluate(self, rule: Callable, rows: tuple[int, int], columns: tuple[int, int]) -> Blocks:
        """Return the `Blocks` of a rule in a range of rows and columns, also beyond the ends of the sequence."""
        queries, keys = (
            np.arange(first * size, last * size, dtype="int32")
            for (first, last), size in zip((rows, columns), self.sizes, strict=True)
        )
        seen = evaluate(rule, queries[:, None], keys[None])
        seen = seen.reshape(rows[1] - rows[0], self.sizes[0], columns[1] - columns[0], self.sizes[1])
        return Blocks(np.asarray(seen.any((1, 3))), np.asarray(seen.all((1, 3))))

    def evaluate_inside(self, rule: Callable, rows: tuple[int, int], columns: tuple[int, int]) -> Blocks:
        """Return `evaluate`, but for slots beyond the ends, which are hidden."""
        return self.evaluate(
            lambda query, key: rule(query, key) & (query < self.lengths[0]) & (key < self.lengths[1]), rows, columns
        )


def _blocks_of(rule: Callable, grid: _Grid) -> Blocks:
    """Return the `Blocks` of a rule that is no union."""
    period, num_keys = getattr(rule, "period", None), getattr(rule, "num_keys", None)
    if period is not None:
        return _blocks_of_period(rule, period, grid)
    blocks = Blocks(*(np.zeros(grid.counts, bool) for _ in Blocks._fields))
    if num_keys is not None:
        _set(blocks, grid.evaluate_inside, rule, (0, grid.counts[0]), (0, -(-num_keys // grid.sizes[1])))
        return blocks
    for row in range(grid.counts[0]):
        _set(blocks, grid.evaluate_inside, rule, (row, row + 1), grid.columns(row))
    return blocks


def _blocks_of_period(rule: Callable, period: int, grid: _Grid) -> Blocks:
    """Return the `Blocks` of a rule that stays the same where query and key move by `period` slots.

    The rows of blocks in one common multiple of the period and both sizes repeat, shifted by that multiple.
    """
    blocks = Blocks(*(np.zeros(grid.counts, bool) for _ in Blocks._fields))
    whole = math.lcm(period, *grid.sizes)
    rows, shift = whole // grid.sizes[0], whole // grid.sizes[1]
    # Far from the start, so that no slot is negative. A whole number of repeats, so that nothing else changes.
    repeats = -(-max(grid.lengths) // whole) + 1
    for row in range(min(rows, grid.counts[0])):
        first, last = grid.columns(row)
        first, last = max(first, -repeats * shift), min(last, grid.counts[1])
        here, there = row + repeats * rows, repeats * shift
        of_row = grid.evaluate(rule, (here, here + 1), (first + there, last + there))
        for repeat, at in enumerate(range(row, grid.counts[0], rows)):
            begin = first + repeat * shift
            start, stop = max(begin, 0), min(last + repeat * shift, grid.counts[1])
            if start < stop:
                for every, found in zip(blocks, of_row, strict=True):
                    every[at, start:stop] = found[0, start - begin : stop - begin]
    # The last blocks may have slots beyond the ends.
    end_row, end_column = grid.counts[0] - 1, grid.counts[1] - 1
    _set(blocks, grid.evaluate_inside, rule, (end_row, end_row + 1), grid.columns(end_row))
    _set(blocks, grid.evaluate_inside, rule, (0, grid.counts[0]), (end_column, end_column + 1))
    return blocks


def _set(blocks: Blocks, find: Callable, rule: Callable, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    """Set a range of `blocks` to what a method of a `_Grid` finds there."""
    columns = max(columns[0], 0), min(columns[1], blocks.some.shape[1])
    if columns[0] >= columns[1]:
        return
    for every, found in zip(blocks, find(rule, rows, columns), strict=True):
        every[rows[0] : rows[1], columns[0] : columns[1]] = found


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
