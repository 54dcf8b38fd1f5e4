"""Attention block by block and its gradient, by the programs of a device.

As FlashAttention-2 has it (Dao 2023, sections 3.1 and 3.2): scores are never written, and blocks without a visible pair
are left out. Each number is added up by one program, always in the same order: results repeat bit for bit.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from tf_sparse_attention.kernels.choice import SlotPairs
from tf_sparse_attention.kernels.devices import over_devices
from tf_sparse_attention.kernels.plan import Plan
from tf_sparse_attention.kernels.scores import HIDDEN, LOG2_E
from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.blocks import pad_axis, slice_axis
from tf_sparse_attention.types import Tensor


class Programs(NamedTuple):
    """The programs of a device, functions of a `Plan` and of rows (R, T or S, X), in whole blocks.

    Keys, values and numbers may have fewer rows, R' of R, each of which is that of R / R' rows beside each other.

    Attributes:
        forward: function of queries, keys, values and numbers, those of queries and then of keys, int32 (R', T or S),
            to outputs (R, T, Hv) and normalizers (R, T): the logarithm to base 2 of the sum of weights, `HIDDEN`
            of a query without a key.
        query_gradients: function of queries, keys, values, gradients of outputs, normalizers, what the gradients of all
            weights of a query have in common (R, T), and numbers, to the gradients of the queries (R, T, H) and, with a
            span, of their reach (R, T).
        key_gradients: of the same to the gradients of the keys (R, S, H) and of the values (R, S, Hv) by each row of
            the queries.
    """

    forward: Callable
    query_gradients: Callable
    key_gradients: Callable


def attend_by(
    programs: Programs, plan: Plan, query: Tensor, key: Tensor, value: Tensor, pairs: SlotPairs
) -> tuple[Tensor, Tensor]:
    """Returns softmax attention of each query slot over the key slots that it may see, and its log-sum-exp.

    Args:
        programs: a `Programs`.
        plan: a `Plan`.
        query: scaled queries (B, N, T, H).
        key: (B, M, S, H), M heads that N / M query heads beside each other share.
        value: (B, M, S, Hv).
        pairs: the `SlotPairs` of the plan.

    Returns:
        Output (B, N, T, Hv) in the dtype of `query`, and float32 (B, N, T); a query that sees no key has zeros and the
        lowest number.
    """
    reach = () if pairs.span_reach is None else (pairs.span_reach,)
    _, queries, keys = pairs.numbers or (None, (), ())
    arrays = [query, key, value, *reach, *queries, *keys]
    return over_devices(lambda *parts: _attend_part(programs, plan, *parts), arrays)


def _attend_part(programs, plan, query, key, value, *numbers):
    """Returns attention of all rows, or of those that one device has."""
    batch, heads, length, _ = query.shape
    queries, keys = plan.sizes
    rows = [_as_rows(x, size) for x, size in ((query, queries), (key, keys), (value, keys))]
    ends = [keys if at >= plan.query_numbers else queries for at in range(len(numbers))]
    padded = [
        pad_axis(x.reshape(-1, x.shape[-1]), -1, 0, end - x.shape[-1]) for x, end in zip(numbers, ends, strict=True)
    ]
    results = _attention_of(programs, plan)(*rows, *padded)
    output, log_sum_exp = (slice_axis(x, 1, 0, length) for x in results)
    return output.reshape(batch, heads, length, -1), log_sum_exp.reshape(batch, heads, length)


def _as_rows(x, size):
    """Returns (B, N, T, H) as rows (B N, T', H) with zeros up to `size` slots."""
    return pad_axis(x.reshape(-1, *x.shape[2:]), -2, 0, size - x.shape[2])


def _of_shared_rows(x, rows):
    """Returns the sums of the gradients (R, S, X) of rows that are one and the same, (R', S, X)."""
    if len(x) == rows:
        return x
    return x.reshape(rows, -1, *x.shape[1:]).astype("float32").sum(1).astype(x.dtype)


@functools.lru_cache(maxsize=64)
def _attention_of(programs, plan):
    """Returns attention of padded rows to outputs and log-sum-exps, a function with a gradient."""
    import jax
    import jax.numpy as jnp

    def results_of(output, normalizer):
        return output, jnp.where(normalizer > HIDDEN, normalizer / LOG2_E, lowest("float32"))

    @jax.custom_vjp
    def attend(query, key, value, *numbers):
        return results_of(*programs.forward(plan, query, key, value, *numbers))

    def attend_forward(query, key, value, *numbers):
        output, normalizer = programs.forward(plan, query, key, value, *numbers)
        return results_of(output, normalizer), (query, key, value, numbers, output, normalizer)

    def attend_backward(kept, upstreams):
        query, key, value, numbers, output, normalizer = kept
        upstream, of_sums = upstreams
        # A softmax takes from each weight's gradient what all have in common: FlashAttention, 2022, equation 4. To the
        # log-sum-exp each score adds by its weight.
        common = (output.astype("float32") * upstream.astype("float32")).sum(-1) - of_sums
        normalizer = jnp.where(normalizer > HIDDEN, normalizer, 0.0)  # as plain operations have it, see `attend`
        arrays = (query, key, value, upstream.astype(query.dtype), normalizer, common, *numbers)
        (query_gradient, *reach_gradient), key_gradients = (
            gradients(plan, *arrays) for gradients in (programs.query_gradients, programs.key_gradients)
        )
        key_gradients = [_of_shared_rows(x, len(key)) for x in key_gradients]
        others = (None,) * (len(numbers) - len(reach_gradient))
        return query_gradient, *key_gradients, *reach_gradient, *others

    attend.defvjp(attend_forward, attend_backward)
    return attend
