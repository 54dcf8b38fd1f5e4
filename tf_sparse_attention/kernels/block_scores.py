"""Scores of a block of queries and a block of keys: plain JAX, shared by the kernels of all devices."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from tf_sparse_attention.kernels.kernel_mask import SPAN_REACH, KernelSpec

Array: TypeAlias = Any  # inside a kernel
Side: TypeAlias = tuple[Array, Mapping[str, Array]]  # indices and data of queries or keys
LOG2_E = math.log2(math.e)  # devices compute powers of 2
FALLBACK = -1e30  # the score of fallback pairs: lower than any other, as `SELF_BIAS`
MASKED = -2e38  # the score of masked pairs: lower still, and finite, since kernels subtract scores
MAX_EXPONENT = 60 * LOG2_E  # of pairs outside a span, whose exponentials would overflow


class Scores(NamedTuple):
    """Scores of a query block and a key block, multiplied by log2(e), so that kernels compute powers of 2.

    The layout is [query, key] or [key, query].

    Attributes:
        values: float32, `MASKED` where a pair does not attend.
        span_factor: factor of each weight, in [0, 1]. None: 1.
        span_slope: derivative of the span factor by the reach of the query.
        cap_slope: derivative of the soft cap. None: 1.
    """

    values: Array
    span_factor: Array | None = None
    span_slope: Array | None = None
    cap_slope: Array | None = None

    def inside_span(self) -> Array:
        """Return the scores, `MASKED` outside the span."""
        import jax.numpy as jnp

        return self.values if self.span_factor is None else jnp.where(self.span_factor > 0, self.values, MASKED)

    def weigh(self, exponentials: Array) -> Array:
        """Multiply exponentials by the span factor."""
        return exponentials if self.span_factor is None else exponentials * self.span_factor

    def differentiate_cap(self, gradients: Array) -> Array:
        """Return gradients of the products q . k from gradients of the scores."""
        return gradients if self.cap_slope is None else gradients * self.cap_slope

    def exponentials(self, normalizer: Array) -> Array:
        """Return the softmax weights before the span factor."""
        import jax.numpy as jnp

        exponents = self.values - normalizer
        return jnp.exp2(exponents if self.span_factor is None else jnp.minimum(exponents, MAX_EXPONENT))


def full_scores(spec: KernelSpec, products: Array) -> Scores:
    """Return the `Scores` of two blocks in which every pair attends, from float32 products q . k."""
    import jax.numpy as jnp

    if spec.mask.soft_cap is None:
        return Scores(products * LOG2_E)
    capped = jnp.tanh(products / spec.mask.soft_cap)
    return Scores(capped * (spec.mask.soft_cap * LOG2_E), cap_slope=1 - capped * capped)


def masked_scores(spec: KernelSpec, products: Array, query: Side, key: Side) -> Scores:
    """Return the `Scores` of two blocks under the mask.

    Args:
        spec: a `KernelSpec`.
        products: float32 products q . k.
        query, key: indices and data, which broadcast to the products.
    """
    import jax.numpy as jnp

    scores, pair, span = full_scores(spec, products), (query[0], key[0], query[1], key[1]), spec.mask.span
    values = scores.values
    if spec.mask.fallback is not None:
        values = jnp.where(spec.mask.fallback(*pair), FALLBACK * LOG2_E, values)
    visible = jnp.broadcast_to(spec.mask.function(*pair), values.shape)
    if spec.lengths[1] % spec.blocks[1]:
        visible &= key[0] < spec.lengths[1]
    values = jnp.where(visible, values, MASKED)
    if span is None:
        return scores._replace(values=values)
    factor = (query[1][SPAN_REACH] - abs(key[0] - span.lead - query[0])) / span.ramp + 1
    slope = jnp.where((factor >= 0) & (factor <= 1), 1 / span.ramp, 0.0)  # 0 and 1 included, see `closed_clip`
    return scores._replace(values=values, span_factor=jnp.clip(factor, 0, 1), span_slope=slope)


def product(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    """Contract one axis of each of two matrices, in float32."""
    import jax

    precision = jax.lax.Precision.HIGHEST if a.dtype == "float32" else None
    numbers = ((axes[:1], axes[1:]), ((), ()))
    return jax.lax.dot_general(a, b, numbers, precision=precision, preferred_element_type="float32")
