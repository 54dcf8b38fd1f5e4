"""Arrangements: queries and keys in groups, so that a query attends within its group."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import Attended
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import are_known, join, pad_axis, shape, slice_axis, split
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
from tf_sparse_attention.types import Size, Tensor


class Arrangement:
    """Queries and keys side by side, in G groups of t query slots and s key slots: the geometry of a pattern.

    A subclass gives `queries`, `keys` and `restore`, what the slots hold (`query_positions`, `key_positions`, `inside`)
    and `key_length`. Rows are (B, N, T, X) with `axis` -2, and go to (B, N, G, t, X); numbers of tokens, such as masks
    and documents, are (B or 1, N or 1, T) with `axis` -1. What is outside the sequence is zero or False. Rows of keys
    may be of fewer heads, M, that N query heads share; where content decides, their numbers go to all N.

    An arrangement may consist of `parts`, which are computed one by one and joined by `combine`. Then it has none of
    the other methods.

    Attributes:
        parts: the arrangements that it consists of; empty for most.
        shares_softmax: whether the parts have the same queries, so that `combine` needs their log-sum-exps.
        key_length: S.
        offsets: constant int array (t, s), key minus query position where it is the same in every group; of an
            arrangement that sorts tokens, key minus query rank. None where groups differ in it.
        is_exact: whether every pair side by side is one that the pattern's rule allows, so that it need not be asked.
        keeps_token_masks: whether padding and other documents are left out already.
        lead: keys before the position of the first query, -1 where key j is at position j + 1.
        sorts_tokens: whether slots depend on content, so that a later token can move others to another slot.
        limits: of an arrangement with an order of its own, in which its rule follows from the slots and the `groups`:
            the least and the most that a key slot is after a query slot in a pair. None where there is no such order.
        groups: int32 (B, N, T) in that order, of queries and keys; None where there are no groups.
        slot_positions: hashable function of the slots of that order, an int array, to their positions; None where these
            are the slots, or ranks that go with them.
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

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        """Returns the queries in groups: (..., T, ...) to (..., G, t, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `queries`.")

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        """Returns the keys beside each group of queries: (..., S, ...) to (..., G, s, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `keys`.")

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        """Returns groups of queries in the order of the sequence: (..., G, t, ...) to (..., T, ...)."""
        raise NotImplementedError(f"{type(self).__name__} must define `restore`.")

    def query_positions(self) -> Tensor:
        """Returns which query each slot holds, int32 (G, t) or (B, N, G, t)."""
        raise NotImplementedError(f"{type(self).__name__} must define `query_positions`.")

    def key_positions(self) -> Tensor:
        """Returns which key each slot holds, int32 (G, s) or (B, N, G, s), anything outside the sequence."""
        raise NotImplementedError(f"{type(self).__name__} must define `key_positions`.")

    def rule_positions(self, period: int | None) -> tuple[Tensor, Tensor]:
        """Returns the positions that a rule is asked of, (..., t, 1) and (..., 1, s).

        Args:
            period: by how many positions both may be moved without a change of the rule; None: by none. An arrangement
                whose groups lie so far apart returns NumPy constants, so that masks are constants too.
        """
        queries, keys = self.pairs()
        return queries, keys - self.lead if self.lead else keys

    def inside(self) -> Tensor | None:
        """Returns where a key slot is inside the sequence, bool broadcastable to (B, N, G, 1, s); None: everywhere."""
        return None

    def past(self) -> Tensor:
        """Returns where a key is not after the query, broadcastable to (B, N, G, t, s), for pairs the rule allows."""
        if self.offsets is not None:
            return self.offsets <= 0
        queries, keys = self.order()
        return keys <= queries

    def order(self) -> tuple[Tensor, Tensor]:
        """Returns numbers of queries (..., t, 1) and of keys (..., 1, s), by which `past` goes."""
        return self.pairs()

    def apart(self) -> Tensor:
        """Returns key position minus query position, int32 (..., t, s)."""
        queries, keys = self.pairs()
        return keys - queries

    def own_key(self) -> Tensor:
        """Returns where a query meets the key of its own position, broadcastable to (B, N, G, t, s)."""
        return self.apart() == 0 if self.offsets is None else self.offsets == 0

    def distances(self) -> Distances:
        """Returns the `Distances` of the slots."""
        if self.offsets is None:
            apart = self.apart()
            return Distances(ranks=apart, tokens=apart, pairs=self.pairs)
        return Distances(self.offsets, tokens=self.apart() if self.sorts_tokens else None, pairs=self.pairs)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Returns the positions of queries (..., t, 1) and of keys (..., 1, s), both tensors or both constants."""
        pair = self.query_positions()[..., :, None], self.key_positions()[..., None, :]
        if any(map(ops.is_tensor, pair)):  # torch does not compute with one of each
            pair = tuple(ops.convert_to_tensor(positions, "int32") for positions in pair)
        return pair

    def features(self, selection: Selection | TokenFeatures) -> TokenFeatures:
        """Return the features of a selection in the slots, (..., t, 1) of queries and (..., 1, s) of keys."""
        of_queries, of_keys = selection.features()
        heads = max((x.shape[1] for x in of_queries.values()), default=None)
        return TokenFeatures(
            {name: self.queries(x, -1)[..., :, None] for name, x in of_queries.items()},
            {name: repeat_key_heads(self.keys(x, -1), heads)[..., None, :] for name, x in of_keys.items()},
        )

    def counts(self) -> Tensor | None:
        """Returns how often each key slot counts, int broadcastable to (B, N, G, 1, s); None: once."""
        return None

    def row_has_key(self) -> Tensor | None:
        """Returns where a query is known to see a key, (B, N, G, t, 1), if no mask of pairs says otherwise; or None."""
        return None

    def in_order(self, x: Tensor, axis: int = -2) -> Tensor:
        """Returns tokens in the order of the slots, (.., T, ..) to (.., T', ..); a slot of none is zero or False."""
        return x

    def from_order(self, x: Tensor) -> Tensor:
        """Returns rows in the order of the sequence, (B, N, T', X) to (B, N, T, X)."""
        return x

    def combine(self, results: Sequence[Attended]) -> Attended:
        """Return the `Attended` of all queries, given that of each part."""
        raise NotImplementedError(f"{type(self).__name__} must define `combine`.")


class QueryRuns(Arrangement):
    """Arrangements of consecutive runs of queries.

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
    """All queries as one group; a subclass has `query_length` and gives the keys."""

    query_length: Size

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.squeeze(x, axis - 1)

    def query_positions(self) -> Tensor:
        return ops.arange(self.query_length, dtype="int32")[None]


class RowsBesideAll(OneGroup):
    """Some of the queries as one group, beside all keys; a subclass has `key_length` and gives the queries."""

    is_exact = True

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(x, axis - 1)

    def key_positions(self) -> Tensor:
        return ops.arange(self.key_length, dtype="int32")[None]


@dataclasses.dataclass(frozen=True)
class Grid(Arrangement):
    """Query blocks, each beside a run of key blocks: the geometry of every blocked pattern.

    Query block g (positions g b .. g b + b - 1) is paired with the key blocks g - before .. g + after, so that a
    query sees s = (before + 1 + after) b key slots. Cost: O(T s) where dense attention has O(T S).

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, likewise.
        block_size: b, positions in a block of queries and of keys.
        before: key blocks before the own one.
        after: key blocks after the own one.
        lead: keys before the position of the first query, an integer: those of earlier text.
        key_block_size: positions in a block of keys, block g of which goes with block g of the queries whatever their
            sizes are. None: `block_size`.

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
        """Positions in a block of keys."""
        return self.block_size if self.key_block_size is None else self.key_block_size

    @property
    def limits(self) -> tuple[int, int] | None:  # type: ignore[override]  # computed, where others keep it
        if self.key_size != self.block_size:
            return None
        return self.lead - (self.before + 1) * self.block_size + 1, self.lead + (self.after + 1) * self.block_size - 1

    @property
    def num_blocks(self) -> Size:
        """G, the number of query blocks."""
        return (self.query_length + self.block_size - 1) // self.block_size

    @property
    def width(self) -> int:
        """s, the key slots beside a query block."""
        return (self.before + 1 + self.after) * self.key_size

    @property
    def offsets(self) -> np.ndarray | None:  # type: ignore[override]  # computed, where others keep it
        """Key position minus query position, a constant array (t, s); None if blocks differ in it."""
        if self.key_size != self.block_size:
            return None
        queries, keys = self._positions_in_block()
        return keys - queries

    def _positions_in_block(self):
        """Returns the positions of the first group as constants, int (t, 1) and (1, s)."""
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
        """Whether a rule of this period says the same of every group."""
        if self.key_size == self.block_size and period is not None and self.block_size % period == 0:
            return True
        return isinstance(self.query_length, int) and self.num_blocks == 1

    def inside(self) -> Tensor:
        positions = self.key_positions()
        return ops.logical_and(positions >= 0, positions < self.key_length)[:, None, :]


def window_grid(query_length: Size, key_length: Size, window: int, causal: bool, lead: int = 0) -> Grid:
    """Returns the `Grid` that covers an exact window at the least cost, whatever block size a user has in mind.

    Half the window to a block, between 16 and 128: smaller blocks waste fewer keys outside the band, larger ones make
    larger matrix products. A window of 256 computes 384 key slots a query.
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
    """Returns the `Grid` of local blocks; a sequence known to be shorter than a block is one block of its own."""
    if key_block_size not in (None, block_size):
        return Grid(query_length, key_length, block_size, before, after, lead, key_block_size)
    if are_known(query_length, key_length) and lead == 0 and max(query_length, key_length) <= block_size:
        return Grid(query_length, key_length, max(query_length, key_length), 0, 0)
    return Grid(query_length, key_length, block_size, before, 0 if causal else after, lead)
