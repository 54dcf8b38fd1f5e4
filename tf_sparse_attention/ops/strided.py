"""Strided attention (Child et al. 2019): the last positions, and every `stride`-th one before."""

import dataclasses
from typing import Any

from keras import ops

from tf_sparse_attention.ops.arranged import apart_in_tokens, attend_arranged, attend_part
from tf_sparse_attention.ops.blocks import join, shape, split
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import NoPosition, rotate_both


@dataclasses.dataclass(frozen=True)
class PhaseGrid:
    """Positions of one phase, position modulo `stride`, side by side: a reshape and a transpose.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, likewise.
        stride: l, an integer.

    Example:
        >>> PhaseGrid(query_length=5, key_length=5, stride=2).key_positions().numpy()
        array([[0, 2, 4],
               [1, 3, 5]], dtype=int32)
    """

    query_length: Any
    key_length: Any
    stride: int

    offsets = None  # distances are multiples of the stride

    def queries(self, x, axis):
        """Returns the queries by phase: (..., T, ...) to (..., l, T / l, ...)."""
        return self._phases(x, axis, self.query_length)

    def keys(self, x, axis):
        """Returns the keys by phase, zeros beyond the sequence: (..., S, ...) to (..., l, S / l, ...)."""
        return self._phases(x, axis, self.key_length)

    def _phases(self, x, axis, length):
        return ops.swapaxes(split(x, self.stride, axis, self._rows(length)), axis - 1, axis)

    def _rows(self, length):
        return (length + self.stride - 1) // self.stride

    def query_positions(self):
        """Returns the position of each query place, int32 (l, T / l)."""
        return self._positions(self.query_length)

    def key_positions(self):
        """Returns the position of each key place, int32 (l, S / l): >= S beyond the sequence."""
        return self._positions(self.key_length)

    def _positions(self, length):
        rows = ops.arange(self._rows(length), dtype="int32") * self.stride
        return ops.arange(self.stride, dtype="int32")[:, None] + rows[None, :]

    def inside(self):
        """Returns where a key place lies inside the sequence, bool (l, 1, S / l)."""
        return (self.key_positions() < self.key_length)[:, None, :]

    def join(self, x, axis):
        """Returns the queries as one sequence: (..., l, T / l, ...) to (..., T, ...)."""
        return join(ops.swapaxes(x, axis - 1, axis), axis, self.query_length)


def strided_attention(
    query,
    key,
    value,
    stride,
    part,
    causal=False,
    masks=TokenMasks(),
    position=NoPosition(),
    return_log_sum_exp=False,
    **options,
):
    """Computes strided attention or a part of it, in O(T (l + T / l)).

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, N, S, H).
        value: values (B, N, S, Hv).
        stride: l.
        part: "local" (0 <= i - j < l if causal, |i - j| < l otherwise), "far" ((i - j) mod l = 0) or "merged", the
            union of both in one softmax.
        causal: whether later keys are hidden.
        masks: a `TokenMasks`; its `query_mask` is not used here.
        position: a position object of `ops.positions`.
        return_log_sum_exp: whether to return the log-sum-exp as well.
        **options: `dropout` and `return_weights` of `attend`.

    Returns:
        An `Attended` of the sequence: output (B, N, T, Hv) and what was asked for.
    """
    common = {"masks": masks, "position": position, **options}

    def near(return_log_sum_exp):
        return local_attention(
            query, key, value, window=stride, causal=causal, **common, return_log_sum_exp=return_log_sum_exp
        )

    def far(return_log_sum_exp):
        grid = PhaseGrid(shape(query)[-2], shape(key)[-2], stride)
        apart = apart_in_tokens(grid)
        pattern = apart <= 0 if causal else None
        if part == "merged":  # of its phase a window has the query's own position alone
            pattern = apart < 0 if causal else apart != 0
        return attend_arranged(
            grid, *rotate_both(position, query, key), value, pattern, **common, return_log_sum_exp=return_log_sum_exp
        )

    return attend_part(part, near, far, return_log_sum_exp)
