"""What every arrangement offers: queries and keys side by side in groups, and what each slot of a group holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import Attended, combine_attended
from tf_sparse_attention.ops.blocks import min_size, shape, slice_axis
from tf_sparse_attention.ops.grouped_heads import repeat_key_heads
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.types import Size, Tensor

# What is known of queries and of keys beside their positions, by name: documents, groups, ranks.
Numbers: TypeAlias = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


class Arrangement:
    """Queries and keys side by side, in G groups of t query slots and s key slots: the geometry of a pattern.

    A subclass gives `queries`, `keys` and `restore`, what the slots hold (`query_positions`, `key_positions`, `inside`)
    and `key_length`. Rows are (B, N, T, X) with `axis` -2, and go to (B, N, G, t, X); numbers of tokens, such as masks
    and documents, are (B or 1, N or 1, T) with `axis` -1. What is outside the sequence is zero or False. Rows of keys
    may be of fewer heads, M, that N query heads share; where content decides, their numbers go to all N.

    Attributes:
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

    def known(self, numbers: Numbers) -> Numbers:
        """Returns what is known of queries and of keys beside their positions, by name, in their slots.

        Args:
            numbers: pair of dictionaries of int (B or 1, N or 1, T) and (B or 1, M or 1, S).

        Returns:
            Pair of dictionaries of (..., t, 1) and (..., 1, s), of keys for each query head.
        """
        own, other = numbers
        heads = max((x.shape[1] for x in own.values()), default=None)
        return (
            {name: self.queries(x, -1)[..., :, None] for name, x in own.items()},
            {name: repeat_key_heads(self.keys(x, -1), heads)[..., None, :] for name, x in other.items()},
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

    def joined(self, x: Tensor) -> Tensor:
        """Returns rows in groups in the order of the slots, (B, N, G, t, X) to (B, N, T', X)."""
        raise NotImplementedError(f"{type(self).__name__} must define `joined`.")

    def from_order(self, x: Tensor) -> Tensor:
        """Returns rows in the order of the sequence, (B, N, T', X) to (B, N, T, X)."""
        return x


class Together:
    """Several arrangements of the same queries whose results are one softmax.

    Attributes:
        arrangements: the `Arrangement`s.
    """

    arrangements: tuple[Any, ...]

    def merge(self, results: Sequence[Attended]) -> Attended:
        """Returns the result of all, an `Attended`, of those of each, which have log-sum-exps."""
        return combine_attended(results)


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


class FirstRows(RowsBesideAll):
    """The first tokens of a sequence as queries, as one group, beside all keys.

    Args:
        count: tokens.
        query_length: T.
        key_length: S.
    """

    def __init__(self, count: int, query_length: Size, key_length: Size) -> None:
        self.query_length, self.key_length = min_size(query_length, count), key_length

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, 0, self.query_length), axis)


class AfterFirst(Arrangement):
    """An arrangement of what comes after the first tokens, of queries and of keys alike.

    Args:
        count: the tokens before.
        arrangement: that of the rest.
        key_length: S.
    """

    def __init__(self, count: int, arrangement: Arrangement, key_length: Size) -> None:
        self._count, self._rest = count, arrangement
        self.key_length, self.is_exact = key_length, arrangement.is_exact

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.queries(self._after_first(x, axis), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.keys(self._after_first(x, axis), axis)

    def _after_first(self, x, axis):
        length = shape(x)[axis]
        return slice_axis(x, axis, min_size(length, self._count), length)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.restore(x, axis)

    def query_positions(self) -> Tensor:
        return self._rest.query_positions() + self._count

    def key_positions(self) -> Tensor:
        return self._rest.key_positions() + self._count

    def inside(self) -> Tensor | None:
        return self._rest.inside()

    def past(self) -> Tensor:
        return self._rest.past()

    def order(self) -> tuple[Tensor, Tensor]:
        return self._rest.order()

    def own_key(self) -> Tensor:
        return self._rest.own_key()

    def distances(self) -> Distances:
        return self._rest.distances()._replace(pairs=self.pairs)
