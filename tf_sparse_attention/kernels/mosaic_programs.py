"""What one step of a TPU computes: attention of two blocks of slots, or what they add to its gradients.

Each program returns what to do before the first of its steps, in each, and after the last. Scores are [key, query], so
that numbers of queries are rows, as they lie in the memory. Plain JAX on references of Pallas, which Mosaic compiles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tf_sparse_attention.kernels.plan import Plan
from tf_sparse_attention.kernels.scores import HIDDEN, product, scores_of, whole_scores

Ref = Any  # of Pallas, to a block of an array in the memory beside the processor
LANES = 128  # of a TPU


class Steps(NamedTuple):
    """What a program does.

    Attributes:
        begin, end: functions without arguments.
        step: function of whether some pairs of the two blocks are hidden.
    """

    begin: Callable
    step: Callable
    end: Callable


def attend_block(plan: Plan, starts: tuple[Any, Any], query: Ref, key: Ref, value: Ref, *refs: Ref) -> Steps:
    """Gives the output of a block of queries, and the logarithm to base 2 of the sum of the weights of each.

    Args:
        plan: a `Plan`.
        starts: the first slots of the blocks of queries and of keys.
        query, key, value: (b, H), (b', H) and (b', Hv).
        refs: what is known of queries (1, b) and of keys (1, b'); the results, (b, Hv) and (1, b); what is carried
            from step to step, (Hv, b), (1, b) and (1, b).
    """
    import jax.numpy as jnp

    numbers, (output, normalizer, added, largest, total) = refs[:-5], refs[-5:]

    def begin():
        added[...], total[...] = jnp.zeros(added.shape), jnp.zeros(total.shape)
        largest[...] = jnp.full(largest.shape, HIDDEN)

    def step(some_hidden):
        scores = _scores(plan, starts, query[...], key[...], numbers, some_hidden)
        live = scores.live()
        highest = jnp.maximum(largest[...], live.max(0, keepdims=True))
        weights, shrunk = scores.counted(jnp.exp2(live - highest)), jnp.exp2(largest[...] - highest)
        added[...] = added[...] * shrunk + product(value[...], weights.astype(value.dtype), (0, 0))
        largest[...], total[...] = highest, total[...] * shrunk + weights.sum(0, keepdims=True)

    def end():
        some = largest[...] > HIDDEN
        sums = jnp.where(some, total[...], 1.0)
        output[...] = jnp.where(some, added[...] / sums, 0.0).T.astype(output.dtype)
        normalizer[...] = largest[...] + jnp.log2(sums)

    return Steps(begin, step, end)


def differentiate_queries(
    plan: Plan,
    starts: tuple[Any, Any],
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> Steps:
    """Gives the gradient of a block of queries.

    Args:
        plan: as in `attend_block`, like `starts`, `query`, `key`, `value` and `normalizer`.
        upstream: the gradient of the output, (b, Hv).
        common: what the gradients of all weights of a query have in common, (1, b).
        refs: numbers as in `attend_block`; the results, (b, H), and with a span the gradient of the reach, (1, b); what
            is carried, of the same shapes.
    """
    import jax.numpy as jnp

    count = 1 + (plan.span is not None)
    numbers, outputs, carried = refs[: -2 * count], refs[-2 * count : -count], refs[-count:]

    def begin():
        for added in carried:
            added[...] = jnp.zeros(added.shape)

    def step(some_hidden):
        keys, changes = key[...], upstream[...]
        scores = _scores(plan, starts, query[...], keys, numbers, some_hidden)
        changed = scores.exponentials(normalizer[...]) * (product(value[...], changes, (1, 1)) - common[...])
        carried[0][...] += product(scores.of_products(scores.counted(changed)).astype(keys.dtype), keys, (0, 0))
        if plan.span is not None:
            carried[1][...] += (changed * scores.slope).sum(0, keepdims=True)

    def end():
        for output, added in zip(outputs, carried, strict=True):
            output[...] = added[...].astype(output.dtype)

    return Steps(begin, step, end)


def differentiate_keys(
    plan: Plan,
    starts: tuple[Any, Any],
    query: Ref,
    key: Ref,
    value: Ref,
    upstream: Ref,
    normalizer: Ref,
    common: Ref,
    *refs: Ref,
) -> Steps:
    """Gives the gradients of a block of keys and of their values.

    Args:
        plan: as in `differentiate_queries`, and so on up to `common`.
        refs: numbers as there; the results, (b', H) and (b', Hv), and what is carried, (b', H) and (b', Hv).
    """
    import jax.numpy as jnp

    numbers, outputs, (of_keys, of_values) = refs[:-4], refs[-4:-2], refs[-2:]

    def begin():
        of_keys[...], of_values[...] = jnp.zeros(of_keys.shape), jnp.zeros(of_values.shape)

    def step(some_hidden):
        queries, changes = query[...], upstream[...]
        scores = _scores(plan, starts, queries, key[...], numbers, some_hidden)
        weights = scores.counted(scores.exponentials(normalizer[...]))
        changed = weights * (product(value[...], changes, (1, 1)) - common[...])
        of_values[...] += product(weights.astype(changes.dtype), changes, (1, 0))
        of_keys[...] += product(scores.of_products(changed).astype(queries.dtype), queries, (1, 0))

    def end():
        for output, added in zip(outputs, (of_keys, of_values), strict=True):
            output[...] = added[...].astype(output.dtype)

    return Steps(begin, step, end)


def _scores(plan, starts, query, key, numbers, some_hidden):
    """Returns the `Scores` of two blocks, (b', b)."""
    import jax

    products = product(key, query, (1, 1))
    if not some_hidden:
        return whole_scores(plan, products)
    queries, keys = (
        start + jax.lax.broadcasted_iota("int32", products.shape, axis)
        for start, axis in zip(starts, (1, 0), strict=True)
    )
    of_queries, of_keys = numbers[: plan.query_numbers], numbers[plan.query_numbers :]
    known = [x[...] for x in of_queries], [_column(x[...]) for x in of_keys]
    return scores_of(plan, products, (queries, keys), known)


def _column(row):
    """Returns a row of numbers (1, b) as (b, 1)."""
    import jax.numpy as jnp

    return jnp.broadcast_to(row, (LANES, row.shape[1])).T[:, :1]
