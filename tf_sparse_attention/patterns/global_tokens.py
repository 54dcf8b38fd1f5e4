"""Global tokens, which attend to every token and are attended to by every token."""

import dataclasses
from typing import cast

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_numbers, take_unique_rows
from tf_sparse_attention.ops.shapes import find_top_k, shape
from tf_sparse_attention.patterns.arrangement import Arrangement, OneGroup, QuerySubset
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures, TokenInfo
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
    """The global tokens as keys, each weighted by its count. O(T num_global).

    The selection is `GlobalTokens`. Source: Longformer (Beltagy et al. 2020), BigBird (Zaheer et al. 2020).

    Args:
        num_global: M, the maximum number of global tokens per row. Tokens beyond the first M are not global.
    """

    num_global: int
    reach = None
    can_be_causal = False  # a global token depends on later tokens, and all tokens attend to it

    def __post_init__(self) -> None:
        checks.check_count("num_global", self.num_global)

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        return key.is_global == 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return GlobalGrid(cast(GlobalTokens, selection))


@dataclasses.dataclass(frozen=True)
class GlobalQueries(Pattern):
    """The at most M = `num_global` global tokens as queries, which attend to all keys. O(T num_global)."""

    num_global: int
    reach = None

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        return query.is_global == 1

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        return GlobalRows(cast(GlobalTokens, selection))


@dataclasses.dataclass(frozen=True)
class GlobalTokens(Selection):
    """The global tokens of a batch.

    Args:
        marks: bool (B, T), whether a token is global.
        positions: int (B, M), positions of the global tokens in order; T in empty slots.
        counts: int (B, M), weight of each global token as a key.
        slots: int (B, T), index among the M slots of each global token.
    """

    marks: Tensor
    positions: Tensor
    counts: Tensor
    slots: Tensor

    def features(self) -> TokenFeatures:
        """Return "is_global", 1 for global tokens."""
        is_global = {"is_global": ops.cast(self.marks, "int32")[:, None]}
        return TokenFeatures(is_global, is_global)


def find_global(counts: Tensor, key_mask: Tensor | None, num_global: int) -> GlobalTokens:
    """Find the `GlobalTokens` of a batch, in O(T) and without a sort.

    Args:
        counts: int or bool (B, T), 0 for tokens that are not global.
        key_mask: bool (B, T) or None. Padding is never global.
        num_global: M, number of slots. Tokens beyond the first M are not global.
    """
    counts = ops.cast(counts, "int32")
    counts = counts if key_mask is None else ops.where(key_mask, counts, 0)
    batch, length = shape(counts)
    slots = ops.cumsum(ops.cast(counts > 0, "int32"), axis=-1) - 1
    marks = ops.logical_and(counts > 0, slots < num_global)
    from_end = ops.where(marks, length - ops.arange(length, dtype="int32"), 0)
    from_end = ops.concatenate([from_end, ops.zeros((batch, num_global), "int32")], axis=-1)  # T may be less than M
    positions = length - find_top_k(from_end, num_global, sorted=True)[0]
    found = ops.take_along_axis(counts, ops.minimum(positions, length - 1), axis=-1)
    counts = ops.where(positions < length, found, 0)
    return GlobalTokens(marks, positions, counts, ops.clip(slots, 0, num_global - 1))


class GlobalGrid(OneGroup):
    """All queries with the global tokens as keys, as one group."""

    is_exact = True

    def __init__(self, tokens: GlobalTokens) -> None:
        self._tokens = tokens
        self.query_length = self.key_length = shape(tokens.marks)[1]

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(_take_global(x, axis, self._tokens), axis - 1)

    def key_positions(self) -> Tensor:
        return _clipped_positions(self._tokens)[:, None, None]  # (B, 1, 1, M)

    def key_exists(self) -> Tensor:
        return (self._tokens.counts > 0)[:, None, None, None]

    def key_counts(self) -> Tensor:
        return self._tokens.counts[:, None, None, None]


class GlobalRows(QuerySubset):
    """The global tokens as queries with all keys. The output of other queries is zero."""

    def __init__(self, tokens: GlobalTokens) -> None:
        self._tokens = tokens
        self.key_length = shape(tokens.marks)[1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(_take_global(x, axis, self._tokens), axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        x, tokens = super().restore(x, axis), self._tokens
        back, exists = _clipped_positions(tokens), tokens.counts > 0
        index, back, exists = (_with_heads(each, x) for each in (tokens.slots, back, exists))
        return ops.where(tokens.marks[:, None, :, None], take_unique_rows(x, index, back, exists), 0)

    def query_positions(self) -> Tensor:
        return _clipped_positions(self._tokens)[:, None, None]


def _take_global(x, axis, tokens):
    """Gather the rows (B, N, M, X) or the numbers (B, 1, M) of the global tokens, arbitrary in empty slots."""
    if axis == -1:
        x = ops.broadcast_to(x, (shape(tokens.marks)[0], *shape(x)[1:]))
        return take_numbers(x, _with_heads(_clipped_positions(tokens), x))
    positions = _clipped_positions(tokens)
    return take_unique_rows(x, *(_with_heads(each, x) for each in (positions, tokens.slots, tokens.marks)))


def _clipped_positions(tokens):
    return ops.minimum(tokens.positions, shape(tokens.marks)[1] - 1)


def _with_heads(x, heads):
    """Broadcast (B, X) to (B, N, X), N of a tensor (B, N, ...)."""
    batch, length = shape(x)
    return ops.broadcast_to(x[:, None], (batch, shape(heads)[1], length))
