"""Fixed attention (Child et al. 2019): the own block, and a few summary columns of every block."""

import dataclasses
from typing import Any

from keras import ops

from tf_sparse_attention.ops.arranged import apart_in_tokens, attend_arranged, attend_part
from tf_sparse_attention.ops.attend import Attended
from tf_sparse_attention.ops.blocks import join, shape, slice_axis, split
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.positions import NoPosition, rotate_both

MAX_RUNS = 8  # of queries, whose keys end where they do: causal attention to summaries costs 9/16 of all pairs then


@dataclasses.dataclass(frozen=True)
class Columns:
    """The summary columns of each block: `count` positions side by side, the `group`-th such run from the end.

    Args:
        block_size: l.
        count: c, at most l.
        group: g; columns l - (g + 1) c .. l - g c - 1 of a block are summaries.
    """

    block_size: int
    count: int
    group: int = 0

    @property
    def first(self):
        """The first summary's place in its block."""
        return self.block_size - (self.group + 1) * self.count

    def take(self, x, axis):
        """Returns the summaries of a sequence: (..., S, ...) to (..., M, ...), M = ceil(S / l) c."""
        num_blocks = (shape(x)[axis] + self.block_size - 1) // self.block_size
        blocks = split(x, self.block_size, axis, num_blocks)
        picked = slice_axis(blocks, axis, self.first, self.first + self.count)
        return join(picked, axis, num_blocks * self.count)

    def positions(self, num_blocks):
        """Returns the position of each summary of the first blocks, int32 (num_blocks c,)."""
        number = ops.arange(num_blocks * self.count, dtype="int32")
        return number // self.count * self.block_size + self.first + number % self.count


@dataclasses.dataclass(frozen=True)
class SummaryGrid:
    """A run of queries beside the summary columns of the first blocks, as one group.

    Args:
        start: the first query, an integer.
        stop: the end of the queries, an integer or a scalar tensor.
        num_blocks: key blocks whose summaries are seen, likewise.
        columns: a `Columns`.
        key_length: S, likewise.
    """

    start: Any
    stop: Any
    num_blocks: Any
    columns: Any
    key_length: Any

    offsets = None  # the columns of a block lie side by side, those of the next a block further

    def queries(self, x, axis):
        """Returns the queries of the run: (..., T, ...) to (..., 1, t, ...)."""
        return ops.expand_dims(slice_axis(x, axis, self.start, self.stop), axis - 1)

    def keys(self, x, axis):
        """Returns the summaries, which are given: (..., M, ...) to (..., 1, s, ...)."""
        return ops.expand_dims(slice_axis(x, axis, 0, self.num_blocks * self.columns.count), axis - 1)

    def query_positions(self):
        """Returns the position of each query, int32 (1, t)."""
        return ops.arange(self.start, self.stop, dtype="int32")[None]

    def key_positions(self):
        """Returns the position of each summary, int32 (1, s): >= S beyond the sequence."""
        return self.columns.positions(self.num_blocks)[None]

    def inside(self):
        """Returns where a summary lies inside the sequence, bool (1, 1, s)."""
        return (self.key_positions() < self.key_length)[:, None, :]

    def join(self, x, axis):
        """Returns the run: (..., 1, t, ...) to (..., t, ...)."""
        return ops.squeeze(x, axis - 1)


def fixed_attention(
    query,
    key,
    value,
    columns,
    part,
    causal=False,
    masks=TokenMasks(),
    position=NoPosition(),
    return_log_sum_exp=False,
    **options,
):
    """Computes fixed attention or a part of it, in O(T (l + c T / l)).

    Args:
        query: scaled queries (B, N, T, H).
        key: keys (B, N, S, H).
        value: values (B, N, S, Hv).
        columns: the `Columns` of each block of l.
        part: "local" (the keys of the own block), "far" (the summary columns of all blocks) or "merged", the union of
            both in one softmax.
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
            query, key, value, columns.block_size, 0, 0, causal=causal, **common, return_log_sum_exp=return_log_sum_exp
        )

    def far(return_log_sum_exp):
        rotated, keys = rotate_both(position, query, key)
        summaries = masks._replace(
            key_mask=None if masks.key_mask is None else columns.take(masks.key_mask, -1),
            key_segments=None if masks.key_segments is None else columns.take(masks.key_segments, -1),
        )
        arguments = rotated, columns.take(keys, -2), columns.take(value, -2)
        asked = {**common, "masks": summaries, "return_log_sum_exp": return_log_sum_exp}
        runs = []
        for grid in _runs(shape(query)[-2], shape(key)[-2], columns, causal):
            seen = _summaries_seen(grid, causal, part == "merged")
            runs.append(attend_arranged(grid, *arguments, seen, **asked))
        return _joined(runs)

    return attend_part(part, near, far, return_log_sum_exp)


def _runs(query_length, key_length, columns, causal):
    """Returns the `SummaryGrid` of each run of queries: all in one, or several whose keys end where they do."""
    num_blocks = (key_length + columns.block_size - 1) // columns.block_size
    known = isinstance(query_length, int) and isinstance(key_length, int)
    if not (causal and known):
        return [SummaryGrid(0, query_length, num_blocks, columns, key_length)]
    blocks_in_run = -(-query_length // (MAX_RUNS * columns.block_size))
    size = blocks_in_run * columns.block_size
    return [
        SummaryGrid(
            start,
            min(start + size, query_length),
            min(start // columns.block_size + blocks_in_run, num_blocks),
            columns,
            key_length,
        )
        for start in range(0, query_length, size)
    ]


def _summaries_seen(grid, causal, other_blocks):
    """Returns which summaries a query sees, bool (1, t, s) or None for all; of its own block's none if wanted."""
    if not other_blocks:
        return apart_in_tokens(grid) <= 0 if causal else None
    block_size = grid.columns.block_size
    own = (grid.query_positions() // block_size)[:, :, None]
    blocks = (grid.key_positions() // block_size)[:, None, :]
    return blocks < own if causal else blocks != own


def _joined(runs):
    """Returns the results of consecutive runs of queries as one."""
    if len(runs) == 1:
        return runs[0]
    output, weights, log_sum_exp = (None if part[0] is None else part for part in zip(*runs, strict=True))
    return Attended(
        ops.concatenate(output, axis=-2),
        None if weights is None else ops.concatenate(weights, axis=-2),
        None if log_sum_exp is None else ops.concatenate(log_sum_exp, axis=-1),
    )
