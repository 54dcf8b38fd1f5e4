"""Grouped-query attention: groups of g query heads share the keys and values of one head.

With N query heads and M = N / g key heads, query head n uses key head n // g (Ainslie et al. 2023, "GQA").
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import Attended, Dropout, attend
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Tensor


def repeat_key_heads(x: Tensor, num_heads: int | None) -> Tensor:
    """Repeat key heads for their query heads: (B, M, ..) to (B, N, ..)."""
    heads = x.shape[1]
    if num_heads is None or heads == num_heads:
        return x
    return ops.repeat(x, num_heads // heads, axis=1)


def take_key_heads(x: Tensor, num_key_heads: int) -> Tensor:
    """Take one query head per group, for data that a group shares: (B, N or 1, ..) to (B, M or 1, ..)."""
    return x[:, :: max(x.shape[1] // num_key_heads, 1)]


def fold_groups(x: Tensor, num_key_heads: int) -> Tensor:
    """Concatenate the tokens of the heads of each group: (B, N, T, H) to (B, M, g T, H)."""
    batch, heads, length, size = shape(x)
    return ops.reshape(x, (batch, num_key_heads, heads // num_key_heads * length, size))


def unfold_groups(x: Tensor, num_heads: int) -> Tensor:
    """Undo `fold_groups` for numbers: (B, M, g T) to (B, N, T)."""
    batch, heads, rows = shape(x)
    return ops.reshape(x, (batch, num_heads, rows // (num_heads // heads)))


def matmul_heads(x: Tensor, y: Tensor) -> Tensor:
    """Multiply (B, N, T, S) by (B, M, S, X), which the heads of a group share: (B, N, T, X)."""
    num_heads, num_key_heads = x.shape[1], y.shape[1]
    if num_heads == num_key_heads:
        return ops.matmul(x, y)
    rows = ops.matmul(fold_groups(x, num_key_heads), y)
    batch, _, _, size = shape(rows)
    return ops.reshape(rows, (batch, num_heads, shape(x)[2], size))


class _Groups(NamedTuple):
    """M groups of g heads, which `attend` takes as an axis of the queries, (B, M, G, g, t, H)."""

    num_groups: int
    size: int

    def merge(self, x: Tensor | None) -> Tensor | None:
        """Reshape a tensor that broadcasts to (B, N, G, t, X) to one that broadcasts to (B, M, G, g, t, X)."""
        if x is None or len(x.shape) < 3:
            return x
        xp = np if isinstance(x, np.ndarray) else ops  # constant masks stay constants
        if len(x.shape) == 3 or x.shape[-4] == 1:
            return xp.expand_dims(x, -3)
        *batch, _, groups, rows, size = shape(x)
        x = xp.reshape(x, (*batch, self.num_groups, self.size, groups, rows, size))
        return xp.swapaxes(x, -4, -3)

    def split(self, x: Tensor | None, axis: int = -3) -> Tensor | None:
        """Undo `merge`; `axis` is the axis of the heads of a group."""
        if x is None:
            return None
        x = ops.swapaxes(x, axis, axis - 1)
        batch, _, _, *rest = shape(x)
        return ops.reshape(x, (batch, self.num_groups * self.size, *rest))

    def dropout(self, dropout: Dropout | None) -> Dropout | None:
        """Return a position-dependent dropout with one number per pair of head and position."""
        if dropout is None or dropout.queries is None or dropout.keys is None:
            return dropout
        queries = ops.squeeze(self.merge(dropout.queries[..., None]), -1)
        heads = ops.arange(self.size, dtype="int32")[:, None]
        # Heads of a group have the same keys in the same slots.
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
    """Compute `attend` for arranged heads; heads of a group share keys and values without a copy.

    Args:
        query: scaled queries (B, N, G, t, H).
        key: (B, M, G, s, H).
        value: (B, M, G, s, Hv).
        mask, bias, span, row_has_key, value_bias, dropout: as in `attend`, for N heads.
        **options: further arguments of `attend`.

    Returns:
        An `Attended` for N heads.
    """
    given: dict[str, Any] = {"mask": mask, "bias": bias, "span": span, "row_has_key": row_has_key}
    groups = _Groups(key.shape[1], query.shape[1] // key.shape[1])
    if groups.size == 1:
        return attend(query, key, value, value_bias=value_bias, dropout=dropout, **given, **options)

    def grouped_value_bias(weights):
        return groups.merge(value_bias(groups.split(weights)))  # type: ignore[misc]  # not called if None

    output, weights, log_sum_exp = attend(
        groups.merge(query),
        key,
        value,
        value_bias=None if value_bias is None else grouped_value_bias,
        dropout=groups.dropout(dropout),
        **{name: groups.merge(x) for name, x in given.items()},  # type: ignore[arg-type]  # passed by name
        **options,
    )
    return Attended(groups.split(output), groups.split(weights), groups.split(log_sum_exp, axis=-2))
