"""Arrangements: queries and keys in groups, so that a query attends within its group."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import Attended
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import are_known, join, pad_axis, repeat_key_heads, shape, slice_axis, split
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
from tf_sparse_attention.types import Size, Tensor


class Arrangement:
    """Queries and keys in G groups of t query slots and s key slots. Queries attend to the keys of their group.

    A subclass defines the methods `queries`, `keys`, `restore`, `query_positions` and `key_positions`, and the
    attribute `key_length`. If the mask rule does not exclude empty key slots, the subclass also overrides `key_exists`.

    `queries` and `keys` split the dimension `axis`. With `axis=-2`, rows (B, N, T, X) become (B, N, G, t, X). With
    `axis=-1`, per-token data (B or 1, N or 1, T), such as masks, become (B or 1, N or 1, G, t). Slots outside the
    sequence are zero or False. Keys may have M heads, each shared by N / M query heads.

    An arrangement with `parts` computes each part separately and merges the results with `combine`. The other methods
    of this arrangement are not used.

    Attributes:
        parts: the arrangements of the parts. Default: no parts.
        shares_softmax: whether all parts have the same queries, so that `combine` needs their log-sum-exps.
        key_length: S.
        offsets: key position minus query position, a constant int array (t, s), if it is the same in every group. If
            the arrangement sorts tokens, key rank minus query rank. None: the values differ between groups.
        is_exact: whether the pattern allows all pairs of all groups, so that no mask rule is evaluated.
        keeps_token_masks: whether the arrangement already excludes padding and other documents.
        lead: offset of the key positions: key j is at position j - lead. Positive for a segment memory, -1 for
            `Successors`.
        sorts_tokens: whether slots depend on content, so that a later token can move other tokens to other slots.
        limits: pair, the smallest and largest (key index - query index) over all pairs, after `to_kernel_order`.
            Kernels compute this band. None: the arrangement has no kernel order.
        groups: int32 (B, N, T), the group that the pattern assigns to each token (cluster or bucket), in kernel order.
            Queries attend only within this group. None: the pattern assigns no groups, or there is no kernel order.
        has_pair_mask: whether `pair_mask` is not None.
        members: arrangement of the keys that key slots represent, equally many consecutive ones per slot, with the same
            queries. A slot then counts once per member that a query may attend to, and masks, except `pair_mask`,
            apply to members. None: each slot is one key.
        slot_positions: hashable function that maps indices in kernel order (int arrays) to positions. None: indices are
            positions or ranks.
    """

    parts: "tuple[Arrangement, ...]" = ()
    shares_softmax = False
    key_length: Size
    offsets: np.ndarray | None = None
    is_exact = False
    keeps_token_masks = False
    sorts_tokens = False
    lead: int = 0
    limits: tuple[int, int] | None = None
    groups: Tensor | None = None
    slot_positions: Callable | None = None
    has_pair_mask = False
    if TYPE_CHECKING:  # as a property, since a subclass may compute it

        @property
        def members(self) -> "Arrangement | None": ...
    else:
        members = None

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        """Split queries into groups: (..., T, ...) to (..., G, t, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `queries`.")

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        """Return the keys of each group: (..., S, ...) to (..., G, s, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `keys`.")

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        """Restore the sequence order of grouped queries: (..., G, t, ...) to (..., T, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `restore`.")

    def query_positions(self) -> Tensor:
        """Return the position of the query in each slot, int32 (G, t) or (B, N, G, t)."""
        raise NotImplementedError(f"{type(self).__name__} must define `query_positions`.")

    def key_positions(self) -> Tensor:
        """Return the position of the key in each slot, int32 (G, s) or (B, N, G, s), undefined in empty slots."""
        raise NotImplementedError(f"{type(self).__name__} must define `key_positions`.")

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        """Return the positions at which the mask rule is evaluated, (..., t, 1) and (..., 1, s).

        Args:
            period: see `Pattern`. If the offset between groups is a multiple of the period, positions are NumPy
                constants. Masks are then constants, too.
        """
        queries, keys = self.pairs()
        return queries, keys - self.lead if self.lead else keys

    def key_exists(self) -> Tensor | None:
        """Return whether key slots hold keys, bool broadcastable to (B, N, G, 1, s). None: True for all slots."""
        return None

    def causal_mask(self) -> Tensor:
        """Return the causal mask, bool broadcastable to (B, N, G, t, s), for pairs that the mask rule allows."""
        if self.offsets is not None:
            return self.offsets <= 0
        queries, keys = self.causal_order()
        return keys <= queries

    def pair_mask(self) -> Tensor | None:
        """Return which pairs were selected one by one, bool broadcastable to (B, N, G, t, s). None: all."""
        return None

    def causal_order(self) -> tuple[Tensor, Tensor]:
        """Return integer ranks of queries (..., t, 1) and keys (..., 1, s), in the same order as their positions.

        By default, these are the positions.
        """
        return self.pairs()

    def relative_positions(self) -> Tensor:
        """Return key position minus query position, int32 (..., t, s)."""
        queries, keys = self.pairs()
        return keys - queries

    def self_mask(self) -> Tensor:
        """Return whether each key is at the query's position, bool broadcastable to (B, N, G, t, s)."""
        return self.relative_positions() == 0 if self.offsets is None else self.offsets == 0

    def distances(self) -> Distances:
        """Return the `Distances` of all pairs."""
        if self.offsets is None:
            apart = self.relative_positions()
            return Distances(ranks=apart, tokens=apart, pairs=self.pairs)
        return Distances(
            self.offsets, tokens=self.relative_positions() if self.sorts_tokens else None, pairs=self.pairs
        )

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return the positions of queries (..., t, 1) and keys (..., 1, s), both tensors or both constants."""
        pair = self.query_positions()[..., :, None], self.key_positions()[..., None, :]
        if any(map(ops.is_tensor, pair)):  # torch does not compute with one of each
            pair = tuple(ops.convert_to_tensor(positions, "int32") for positions in pair)
        return pair

    def features(self, selection: Selection | TokenFeatures) -> TokenFeatures:
        """Return the token features of each slot: (..., t, 1) for queries and (..., 1, s) for keys."""
        of_queries, of_keys = selection.features()
        heads = max((x.shape[1] for x in of_queries.values()), default=None)
        return TokenFeatures(
            {name: self.queries(x, -1)[..., :, None] for name, x in of_queries.items()},
            {name: repeat_key_heads(self.keys(x, -1), heads)[..., None, :] for name, x in of_keys.items()},
        )

    def key_counts(self) -> Tensor | None:
        """Return the number of keys that each key slot represents, int broadcastable to (B, N, G, 1, s). None: 1."""
        return None

    def row_has_key(self) -> Tensor | None:
        """Return whether each query has at least one key before pairwise masks are applied, bool (B, N, G, t, 1).

        None: unknown.
        """
        return None

    def to_kernel_order(self, x: Tensor, axis: int = -2) -> Tensor:
        """Reorder tokens for kernels that compute a band, (.., T, ..) to (.., T', ..). Empty slots are zero."""
        return x

    def from_kernel_order(self, x: Tensor) -> Tensor:
        """Restore the sequence order of tokens in kernel order: (B, N, T', X) to (B, N, T, X)."""
        return x

    def combine(self, results: Sequence[Attended]) -> Attended:
        """Merge the results of the parts into one `Attended` for all queries."""
        raise NotImplementedError(f"{type(self).__name__} must define `combine`.")


MAX_RUNS = 8  # of the queries of a causal call, each run with all keys up to its end: 9/16 of all pairs


def query_runs(length: int, unit: int = 1) -> list[tuple[int, int]]:
    """Return the first query, and the one after the last, of at most `MAX_RUNS` runs of whole units."""
    size = -(-length // (MAX_RUNS * unit)) * unit
    return [(start, min(start + size, length)) for start in range(0, length, size)]


class QueryRuns(Arrangement):
    """Separate arrangements of consecutive runs of queries.

    Args:
        parts: the `Arrangement` of each run, in the order of the queries.
    """

    def __init__(self, parts: Iterable[Arrangement]) -> None:
        self.parts = tuple(parts)

    def combine(self, results: Sequence[Attended]) -> Attended:
        output, weights, log_sum_exp = (None if part[0] is None else part for part in zip(*results, strict=True))
        return Attended(
            ops.concatenate(output, axis=-2),
            None if weights is None else ops.concatenate(weights, axis=-2),
            None if log_sum_exp is None else ops.concatenate(log_sum_exp, axis=-1),
        )


class OneGroup(Arrangement):
    """One group of all queries. A subclass defines `query_length` and the keys."""

    query_length: Size

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.squeeze(x, axis - 1)

    def query_positions(self) -> Tensor:
        return ops.arange(self.query_length, dtype="int32")[None]


class QuerySubset(OneGroup):
    """One group of selected queries and all keys. A subclass defines `key_length` and the queries."""

    is_exact = True

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def key_positions(self) -> Tensor:
        return ops.arange(self.key_length, dtype="int32")[None]


@dataclasses.dataclass(frozen=True)
class Grid(Arrangement):
    """Arrangement of blocked patterns: blocks of queries with the surrounding blocks of keys.

    Query block g (positions g b .. g b + b - 1) is paired with the key blocks g - before .. g + after, so each query
    has s = (before + 1 + after) b key slots. The cost is O(T s), compared with O(T S) of dense attention.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, an integer or a scalar tensor.
        block_size: b, positions per block of queries and keys.
        before: number of key blocks before block g.
        after: number of key blocks after block g.
        lead: as in `Arrangement`. Default 0.
        key_block_size: positions per block of keys. Key block g is paired with query block g. None: `block_size`.

    Example:
        >>> grid = Grid(query_length=5, key_length=5, block_size=2, before=1, after=0)
        >>> grid.offsets
        array([[-2, -1,  0,  1],
               [-3, -2, -1,  0]])
    """

    query_length: Size
    key_length: Size
    block_size: int
    before: int
    after: int
    lead: int = 0
    key_block_size: int | None = None

    @property
    def key_size(self) -> int:
        """Positions per block of keys."""
        return self.block_size if self.key_block_size is None else self.key_block_size

    @property
    def limits(self) -> tuple[int, int] | None:  # type: ignore[override]  # computed here
        if self.key_size != self.block_size:
            return None
        return self.lead - (self.before + 1) * self.block_size + 1, self.lead + (self.after + 1) * self.block_size - 1

    @property
    def num_blocks(self) -> Size:
        """G, the number of query blocks."""
        return (self.query_length + self.block_size - 1) // self.block_size

    @property
    def width(self) -> int:
        """s, key slots per query block."""
        return (self.before + 1 + self.after) * self.key_size

    @property
    def offsets(self) -> np.ndarray | None:  # type: ignore[override]  # computed here
        """Key position minus query position, a constant array (t, s). None: blocks differ."""
        if self.key_size != self.block_size:
            return None
        queries, keys = self._positions_in_block()
        return keys - queries

    def _positions_in_block(self):
        """Return the positions of the first group as constants, int (t, 1) and (1, s)."""
        keys = np.arange(self.width) - self.before * self.key_size
        return np.arange(self.block_size)[:, None], keys[None, :]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return split(x, self.block_size, axis, self.num_blocks)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        num_blocks, reach = self.num_blocks, self.before + 1 + self.after
        missing = self.before * self.key_size - self.lead
        x = pad_axis(x, axis, missing, 0) if missing >= 0 else slice_axis(x, axis, -missing, shape(x)[axis])
        x = split(x, self.key_size, axis, num_blocks + reach - 1)
        shifted = [slice_axis(x, axis - 1, first, first + num_blocks) for first in range(reach)]
        return ops.concatenate(shifted, axis) if reach > 1 else x

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return join(x, axis, self.query_length)

    def key_positions(self) -> Tensor:
        starts = (ops.arange(self.num_blocks, dtype="int32") - self.before) * self.key_size + self.lead
        return starts[:, None] + ops.arange(self.width, dtype="int32")

    def query_positions(self) -> Tensor:
        starts = ops.arange(self.num_blocks, dtype="int32") * self.block_size
        return starts[:, None] + ops.arange(self.block_size, dtype="int32")

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        if self._repeats(period):
            return self._positions_in_block()
        return self.query_positions()[..., :, None], (self.key_positions() - self.lead)[..., None, :]

    def _repeats(self, period):
        """Return whether a mask rule with this period is the same in every group."""
        if self.key_size == self.block_size and period is not None and self.block_size % period == 0:
            return True
        return isinstance(self.query_length, int) and self.num_blocks == 1

    def key_exists(self) -> Tensor:
        positions = self.key_positions()
        return ops.logical_and(positions >= 0, positions < self.key_length)[:, None, :]


def window_grid(query_length: Size, key_length: Size, window: int, causal: bool, lead: int = 0) -> Grid:
    """Return the `Grid` that covers a sliding window at the least cost.

    Blocks have about half the size of the window, between 16 and 128: smaller blocks compute fewer keys outside of the
    window, larger blocks make larger matrix products. A window of 256 computes 384 key slots per query.
    """
    block_size = 16
    while block_size < 128 and 2 * block_size < window:
        block_size *= 2
    before = -(-(window - 1) // block_size)
    return Grid(query_length, key_length, block_size, before, 0 if causal else before, lead)


def block_grid(
    query_length: Size,
    key_length: Size,
    block_size: int,
    before: int,
    after: int,
    causal: bool,
    lead: int = 0,
    key_block_size: int | None = None,
) -> Grid:
    """Return the `Grid` of local blocks. A sequence that is known to be shorter than a block is one block."""
    if key_block_size not in (None, block_size):
        return Grid(query_length, key_length, block_size, before, after, lead, key_block_size)
    if are_known(query_length, key_length) and lead == 0 and max(query_length, key_length) <= block_size:
        return Grid(query_length, key_length, max(query_length, key_length), 0, 0)
    return Grid(query_length, key_length, block_size, before, 0 if causal else after, lead)
