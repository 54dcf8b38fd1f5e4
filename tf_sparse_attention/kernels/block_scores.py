"""Scores of two blocks of slots, whatever device computes them: plain JAX on arrays."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from tf_sparse_attention.kernels.kernel_mask import Plan

Array: TypeAlias = Any  # inside a kernel
LOG2_E = math.log2(math.e)  # powers of 2 are what the devices have
LAST = -1e30  # the score of a pair that counts where a query sees nothing else: lower than any other, as `SELF_BIAS`
HIDDEN = -2e38  # that of a pair that is hidden: lower still, and finite, since the difference of two is taken
MOST = 60 * LOG2_E  # the largest exponent of a pair that a span silences, whose weight would overflow


class Scores(NamedTuple):
    """Scores of two blocks, to base 2, in one of the orders [query, key] and [key, query].

    Attributes:
        values: float32, `HIDDEN` where a pair does not attend.
        share: how much of each pair counts, in [0, 1]; None: all of it.
        slope: the derivative of the share by the reach of the query.
        steepness: the derivative of the score by the product of query and key; None: 1.
    """

    values: Array
    share: Array | None = None
    slope: Array | None = None
    steepness: Array | None = None

    def live(self) -> Array:
        """Returns the scores of the pairs that count, `HIDDEN` of others."""
        import jax.numpy as jnp

        return self.values if self.share is None else jnp.where(self.share > 0, self.values, HIDDEN)

    def counted(self, exponentials: Array) -> Array:
        """Returns exponentials of scores as weights."""
        return exponentials if self.share is None else exponentials * self.share

    def of_products(self, changed: Array) -> Array:
        """Returns gradients of products of gradients of scores."""
        return changed if self.steepness is None else changed * self.steepness

    def exponentials(self, normalizer: Array) -> Array:
        """Returns what the weights are before a span takes its part of them."""
        import jax.numpy as jnp

        exponents = self.values - normalizer
        return jnp.exp2(exponents if self.share is None else jnp.minimum(exponents, MOST))


def whole_scores(plan: Plan, products: Array) -> Scores:
    """Returns the `Scores` of two blocks of which all pairs attend, of products of queries and keys, float32."""
    import jax.numpy as jnp

    if plan.soft_cap is None:
        return Scores(products * LOG2_E)
    bent = jnp.tanh(products / plan.soft_cap)
    return Scores(bent * (plan.soft_cap * LOG2_E), steepness=1 - bent * bent)


def scores_of(
    plan: Plan, products: Array, slots: tuple[Array, Array], numbers: tuple[Sequence[Array], Sequence[Array]]
) -> Scores:
    """Returns the `Scores` of two blocks.

    Args:
        plan: a `Plan`.
        products: of queries and keys, float32.
        slots: those of queries and of keys, int32 that broadcast to the products.
        numbers: what is known of queries and of keys, likewise; with a span the first of queries is their reach.
    """
    import jax.numpy as jnp

    scores = whole_scores(plan, products)
    values = scores.values
    if plan.last is not None:
        values = jnp.where(plan.last(slots, numbers), LAST * LOG2_E, values)
    seen = jnp.broadcast_to(plan.rule(*slots), values.shape)
    if plan.lengths[1] % plan.blocks[1]:
        seen &= slots[1] < plan.lengths[1]
    of_queries, of_keys = numbers
    if plan.of_numbers is not None:
        seen &= plan.of_numbers(of_queries[plan.span is not None :], of_keys)
    values = jnp.where(seen, values, HIDDEN)
    if plan.span is None:
        return scores._replace(values=values)
    share = (of_queries[0] - abs(slots[1] - plan.span.lead - slots[0])) / plan.span.ramp + 1
    slope = jnp.where((share >= 0) & (share <= 1), 1 / plan.span.ramp, 0.0)  # 0 and 1 included, see `closed_clip`
    return scores._replace(values=values, share=jnp.clip(share, 0, 1), slope=slope)


def product(a: Any, b: Any, axes: tuple[int, int]) -> Any:
    """Returns the sums over one axis of two matrices each, float32."""
    import jax

    precision = jax.lax.Precision.HIGHEST if a.dtype == "float32" else None
    numbers = ((axes[:1], axes[1:]), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type="float32")
