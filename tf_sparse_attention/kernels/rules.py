"""What the rules of `SlotPairs` say of slots that are known when a program is made: pairs, and blocks of pairs."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


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
    """Returns in which `Blocks` the pairs lie that a rule allows.

    Args:
        rule: as in `SlotPairs`; so are `limits`.
        lengths: slots of queries and of keys; those beyond, in the last blocks, see nothing and are not seen.
        sizes: query and key slots of a block.
    """
    counts = tuple(-(-length // size) for length, size in zip(lengths, sizes, strict=True))
    some, whole = np.zeros(counts, bool), np.zeros(counts, bool)
    keys = np.arange(counts[1] * sizes[1], dtype="int32")[None, :]
    for number in range(counts[0]):
        queries = np.arange(number * sizes[0], (number + 1) * sizes[0], dtype="int32")[:, None]
        first = max(int(queries[0, 0]) + limits[0], 0) // sizes[1]
        last = min((int(queries[-1, 0]) + limits[1]) // sizes[1] + 1, counts[1])
        if first >= last:
            continue
        near = keys[:, first * sizes[1] : last * sizes[1]]
        seen = evaluate(rule, queries, near) & (queries < lengths[0]) & (near < lengths[1])
        seen = seen.reshape(sizes[0], last - first, sizes[1])
        some[number, first:last], whole[number, first:last] = seen.any((0, 2)), seen.all((0, 2))
    return Blocks(some, whole)
