"""Heads in groups: g query heads beside each other that share the keys and values of one head.

Of N query heads and M = N / g key heads, query head n has key head n // g (Ainslie et al. 2023, "GQA").
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, attend
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Tensor


def repeat_key_heads(x: Tensor, num_heads: int | None) -> Tensor:
    """Returns numbers of key heads for each query head: (B, M, ..) to (B, N, ..)."""
    heads = x.shape[1]
    if num_heads is None or heads == num_heads:
        return x
    return ops.repeat(x, num_heads // heads, axis=1)


def take_key_heads(x: Tensor, num_key_heads: int) -> Tensor:
    """Returns numbers that the heads of a group have in common, once: (B, N or 1, ..) to (B, M or 1, ..)."""
    return x[:, :: max(x.shape[1] // num_key_heads, 1)]


def fold_groups(x: Tensor, num_key_heads: int) -> Tensor:
    """Returns the tokens of the heads of a group one after the other: (B, N, T, H) to (B, M, g T, H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(x, (batch, num_key_heads, heads // num_key_heads * length, size))


def unfold_groups(x: Tensor, num_heads: int) -> Tensor:
    """Returns numbers of `fold_groups` for each head: (B, M, g T) to (B, N, T)."""
    batch, heads, rows = shape(x)
    return ops.reshape(x, (batch, num_heads, rows // (num_heads // heads)))


def matmul_heads(x: Tensor, y: Tensor) -> Tensor:
    """Returns products of (B, N, T, S) with (B, M, S, X), those of the heads of a group with the same one."""
    num_heads, num_key_heads = x.shape[1], y.shape[1]
    if num_heads == num_key_heads:
        return ops.matmul(x, y)
    rows = ops.matmul(fold_groups(x, num_key_heads), y)
    batch, _, _, size = shape(rows)
    return ops.reshape(rows, (batch, num_heads, shape(x)[2], size))


class _Groups(NamedTuple):
    """M groups of g heads, whose queries `attend` takes beside each other, (B, M, G, g, t, H)."""

    num_groups: int
    size: int

    def together(self, x: Tensor | None) -> Tensor | None:
        """Returns what broadcasts to (B, N, G, t, X) as what broadcasts to (B, M, G, g, t, X)."""
        if x is None or len(x.shape) < 3:
            return x
        xp = np if isinstance(x, np.ndarray) else ops  # masks that are constants stay so
        if len(x.shape) == 3 or x.shape[-4] == 1:
            return xp.expand_dims(x, -3)
        *batch, _, groups, rows, size = shape(x)
        x = xp.reshape(x, (*batch, self.num_groups, self.size, groups, rows, size))
        return xp.swapaxes(x, -4, -3)

    def apart(self, x: Tensor | None, axis: int = -3) -> Tensor | None:
        """Returns what was put together, with the axis of the heads of a group, as it was."""
        if x is None:
            return None
        x = ops.swapaxes(x, axis, axis - 1)
        batch, _, _, *rest = shape(x)
        return ops.reshape(x, (batch, self.num_groups * self.size, *rest))

    def of_dropout(self, dropout: Dropout | None) -> Dropout | None:
        """Returns a dropout by position with a number for each pair of head and position."""
        if dropout is None or dropout.queries is None or dropout.keys is None:
            return dropout
        queries = ops.squeeze(self.together(dropout.queries[..., None]), -1)
        heads = ops.arange(self.size, dtype="int32")[:, None]
        # Heads that share rows of keys have them in the same slots.
        keys = take_key_heads(dropout.keys, self.num_groups)
        return dropout.with_positions(queries * self.size + heads, ops.expand_dims(keys, 3))


def attend_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    span: Tensor | None = None,
    row_has_key: Tensor | None = None,
    value_bias: Callable[[Tensor], Tensor] | None = None,
    dropout: Dropout | None = None,
    **options: Any,
) -> Attended:
    """Computes `attend` of arranged heads; those of a group share the rows of keys and values, which are not repeated.

    Args:
        query: scaled queries (B, N, G, t, H).
        key: (B, M, G, s, H).
        value: (B, M, G, s, Hv).
        mask: as in `attend`, for the N heads; so are `bias`, `span`, `row_has_key`, `value_bias` and `dropout`.
        **options: the other arguments of `attend`.

    Returns:
        An `Attended` of the N heads.
    """
    given: dict[str, Any] = {"mask": mask, "bias": bias, "span": span, "row_has_key": row_has_key}
    groups = _Groups(key.shape[1], query.shape[1] // key.shape[1])
    if groups.size == 1:
        return attend(query, key, value, value_bias=value_bias, dropout=dropout, **given, **options)

    def of_groups(weights):
        return groups.together(value_bias(groups.apart(weights)))  # type: ignore[misc]  # only where there is one

    output, weights, log_sum_exp = attend(
        groups.together(query),
        key,
        value,
        value_bias=None if value_bias is None else of_groups,
        dropout=groups.of_dropout(dropout),
        **{name: groups.together(x) for name, x in given.items()},  # type: ignore[arg-type]  # by their names
        **options,
    )
    return Attended(groups.apart(output), groups.apart(weights), groups.apart(log_sum_exp, axis=-2))
