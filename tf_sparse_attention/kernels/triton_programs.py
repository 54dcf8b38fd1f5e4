"""What one program of the GPU computes: attention of a block of slots, or its gradients, over the blocks that it sees.

A program reads its part of some arrays whole ("own"), and of others ("all") the blocks that a table lists for it. Plain
JAX on references of Pallas, which Triton compiles.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

Ref = Any  # of Pallas, to an array in the memory of the device
HIDDEN = -1e30  # the score of a pair that is hidden: finite, since the difference of two is taken
BLOCKS = (64, 64)  # the fastest of those tried on an H200
LOG2_E = math.log2(math.e)  # powers of 2 are what the device has


class Plan(NamedTuple):
    """What a kernel is made for: `SlotPairs` without its arrays, and sizes.

    Attributes:
        rule, limits: see `SlotPairs`.
        lengths: slots of queries and of keys.
        blocks: slots of a block of queries and of keys, powers of 2.
        interpret: whether to interpret the kernels, on any device.
        warps, stages: of a program, and how many blocks are loaded ahead; the fastest of those tried on an H200.
    """

    rule: Callable
    limits: tuple[int, int]
    lengths: tuple[int, int]
    blocks: tuple[int, int] = BLOCKS
    interpret: bool = False
    warps: int = 4
    stages: int = 2


def attend_block(plan: Plan, counts: Ref, numbers: Ref, query: Ref, key: Ref, value: Ref, *refs: Ref) -> None:
    """Writes the output of a block of queries, and the logarithm to base 2 of the sum of the weights of each.

    Args:
        plan: a `Plan`.
        counts, numbers: the row of a `Table` for this block.
        query: its own, (b, H).
        key, value: all, (S, H) and (S, Hv).
        refs: with groups its own (b,) and those of all keys (S,); then the results, (b, Hv) and (b,).
    """
    import jax.numpy as jnp

    groups, (output, normalizer) = refs[:-2], refs[-2:]
    queries, start, size = query[...], _start(plan, 0), plan.blocks[0]
    own_groups = groups[0][...] if groups else None

    def step(number, carry, masked):
        added, largest, total = carry
        slots = _slots(plan, 1, numbers[number])
        scores = _dot(queries, key[slots, :].T) * LOG2_E
        if masked:
            seen = _seen(plan, start, slots.start, own_groups, groups[1][slots] if groups else None)
            scores = jnp.where(seen, scores, HIDDEN)
        highest = jnp.maximum(largest, scores.max(-1))
        weights, shrunk = jnp.exp2(scores - highest[:, None]), jnp.exp2(largest - highest)
        values = value[slots, :]
        added = added * shrunk[:, None] + _dot(weights.astype(values.dtype), values)
        return added, highest, total * shrunk + weights.sum(-1)

    carry = jnp.zeros((size, value.shape[-1])), jnp.full((size,), HIDDEN), jnp.zeros((size,))
    added, largest, total = _over_blocks(counts, step, carry, bool(groups))
    total = jnp.where(total > 0, total, 1.0)
    output[...] = (added / total[:, None]).astype(output.dtype)
    normalizer[...] = largest + jnp.log2(total)


def differentiate_queries(
    plan: Plan,
    counts: Ref,
    numbers: Ref,
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> None:
    """Writes the gradient of a block of queries.

    Args:
        plan: as in `attend_block`, like `counts`, `numbers`, `query`, `key`, `value` and `normalizer`.
        upstream: the gradient of the output of the own queries, (b, Hv).
        common: what the gradients of all weights of a query have in common, (b,).
        refs: groups as in `attend_block`; then the result, (b, H).
    """
    import jax.numpy as jnp

    groups, (output,) = refs[:-1], refs[-1:]
    queries, changes, start = query[...], upstream[...], _start(plan, 0)
    sums, both = normalizer[...][:, None], common[...][:, None]
    own_groups = groups[0][...] if groups else None

    def step(number, carry, masked):
        slots = _slots(plan, 1, numbers[number])
        keys = key[slots, :]
        weights = jnp.exp2(_dot(queries, keys.T) * LOG2_E - sums)
        if masked:
            seen = _seen(plan, start, slots.start, own_groups, groups[1][slots] if groups else None)
            weights = jnp.where(seen, weights, 0.0)
        changed = weights * (_dot(changes, value[slots, :].T) - both)
        return carry + _dot(changed.astype(keys.dtype), keys)

    found = _over_blocks(counts, step, jnp.zeros(output.shape), bool(groups))
    output[...] = found.astype(output.dtype)


def differentiate_keys(
    plan: Plan,
    counts: Ref,
    numbers: Ref,
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> None:
    """Writes the gradients of a block of keys and of their values.

    Args:
        plan: as in `attend_block`, like `counts` and `numbers`.
        query, upstream, normalizer, common: as in `differentiate_queries`, but of all queries, (T, H) and so on.
        key, value: those of this block, (b, H) and (b, Hv).
        refs: with groups those of all queries and its own; then the results, (b, H) and (b, Hv).
    """
    import jax.numpy as jnp

    groups, outputs = refs[:-2], refs[-2:]
    keys, values, start = key[...], value[...], _start(plan, 1)
    own_groups = groups[1][...] if groups else None

    def step(number, carry, masked):
        of_keys, of_values = carry
        slots = _slots(plan, 0, numbers[number])
        queries, changes = query[slots, :], upstream[slots, :]
        weights = jnp.exp2(_dot(queries, keys.T) * LOG2_E - normalizer[slots][:, None])
        if masked:
            seen = _seen(plan, slots.start, start, groups[0][slots] if groups else None, own_groups)
            weights = jnp.where(seen, weights, 0.0)
        changed = weights * (_dot(changes, values.T) - common[slots][:, None])
        of_values = of_values + _dot(weights.astype(changes.dtype).T, changes)
        return of_keys + _dot(changed.astype(queries.dtype).T, queries), of_values

    carry = tuple(jnp.zeros(each.shape) for each in outputs)
    for output, found in zip(outputs, _over_blocks(counts, step, carry, bool(groups)), strict=True):
        output[...] = found.astype(output.dtype)


def _over_blocks(counts, step, carry, masked):
    """Returns what is carried over all blocks of a table's row; those without a hidden pair need no mask."""
    import jax

    partial = counts[1] if masked else counts[0]
    carry = jax.lax.fori_loop(0, partial, lambda number, carry: step(number, carry, True), carry)
    if masked:
        return carry
    return jax.lax.fori_loop(partial, counts[1], lambda number, carry: step(number, carry, False), carry)


def _slots(plan, side, number):
    from jax.experimental import pallas

    return pallas.dslice(number * plan.blocks[side], plan.blocks[side])


def _start(plan, side):
    from jax.experimental import pallas

    return pallas.program_id(0) * plan.blocks[side]


def _seen(plan, query_start, key_start, query_groups, key_groups):
    """Returns which pairs of two blocks are visible, bool (b, b')."""
    import jax
    import jax.numpy as jnp

    queries = query_start + jax.lax.broadcasted_iota("int32", (plan.blocks[0], 1), 0)
    keys = key_start + jax.lax.broadcasted_iota("int32", (1, plan.blocks[1]), 1)
    seen = jnp.broadcast_to(plan.rule(queries, keys), plan.blocks)
    if plan.lengths[1] % plan.blocks[1]:
        seen &= keys < plan.lengths[1]
    return seen if query_groups is None else seen & (query_groups[:, None] == key_groups[None, :])


def _dot(a: Any, b: Any) -> Any:
    import jax

    precision = jax.lax.Precision.HIGHEST if a.dtype == "float32" else None
    return jax.lax.dot(a, b, precision=precision, preferred_element_type="float32")
