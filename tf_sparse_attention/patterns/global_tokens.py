"""Global tokens, which attend to every token and are attended to by every token."""

import dataclasses
from typing import cast

from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_numbers, take_unique_rows
from tf_sparse_attention.ops.shapes import find_top_k, shape
from tf_sparse_attention.patterns.arrangement import Arrangement, OneGroup, RowsBesideAll
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenFeatures
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Tensor


@dataclasses.dataclass(frozen=True)
class Global(Pattern):
    """The tokens that a call marks as global, of which each counts as often as it says. O(T num_global).

    The selection is `GlobalTokens`. Source: Longformer (Beltagy et al. 2020), BigBird (Zaheer et al. 2020).

    Args:
        num_global: M, global tokens that a row may have; of more, the first M are.
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
class FromGlobal(Pattern):
    """All keys, of the queries that are global tokens; other queries see nothing. O(T num_global).

    Args:
        num_global: M.
    """

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
        marks: bool (B, T), which tokens they are.
        positions: int (B, M), their positions in order; T for slots that are not taken.
        counts: int (B, M), how often each counts as a key.
        slots: int (B, T), the slot among M of each token that is global.
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
    """Returns the `GlobalTokens` of a batch, in O(T) and without a sort.

    Args:
        counts: int or bool (B, T), zero for tokens that are not global.
        key_mask: bool (B, T) or None; padding is never global.
        num_global: M, slots. Tokens beyond the first M are not global.
    """
    counts = ops.cast(counts, "int32")
    counts = counts if key_mask is None else ops.where(key_mask, counts, 0)
    batch, length = shape(counts)
    slots = ops.cumsum(ops.cast(counts > 0, "int32"), axis=-1) - 1
    marks = ops.logical_and(counts > 0, slots < num_global)
    nearness = ops.where(marks, length - ops.arange(length, dtype="int32"), 0)
    nearness = ops.concatenate([nearness, ops.zeros((batch, num_global), "int32")], axis=-1)  # T may be less than M
    positions = length - find_top_k(nearness, num_global, sorted=True)[0]
    found = ops.take_along_axis(counts, ops.minimum(positions, length - 1), axis=-1)
    counts = ops.where(positions < length, found, 0)
    return GlobalTokens(marks, positions, counts, ops.clip(slots, 0, num_global - 1))


class GlobalGrid(OneGroup):
    """All queries beside the global tokens, as one group.

    Args:
        tokens: a `GlobalTokens`.
    """

    is_exact = True

    def __init__(self, tokens: GlobalTokens) -> None:
        self._tokens = tokens
        self.query_length = self.key_length = shape(tokens.marks)[1]

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return ops.expand_dims(_take_global(x, axis, self._tokens), axis - 1)

    def key_positions(self) -> Tensor:
        return _inside(self._tokens)[:, None, None]  # (B, 1, 1, M)

    def inside(self) -> Tensor:
        return (self._tokens.counts > 0)[:, None, None, None]

    def counts(self) -> Tensor:
        return self._tokens.counts[:, None, None, None]


class GlobalRows(RowsBesideAll):
    """The global tokens as queries, beside all keys; the rows of other queries are zeros.

    Args:
        tokens: a `GlobalTokens`.
    """

    def __init__(self, tokens: GlobalTokens) -> None:
        self._tokens = tokens
        self.key_length = shape(tokens.marks)[1]

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(_take_global(x, axis, self._tokens), axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        x, tokens = super().restore(x, axis), self._tokens
        index, back, exists = (_for_heads(each, x) for each in (tokens.slots, _inside(tokens), tokens.counts > 0))
        return ops.where(tokens.marks[:, None, :, None], take_unique_rows(x, index, back, exists), 0)

    def query_positions(self) -> Tensor:
        return _inside(self._tokens)[:, None, None]


def _take_global(x, axis, tokens):
    """Returns the rows (B, N, M, X) of the global tokens of (B, N, T, X), or numbers (B, 1, M); any where none is."""
    if axis == -1:
        return take_numbers(
            ops.broadcast_to(x, (shape(tokens.marks)[0], *shape(x)[1:])), _for_heads(_inside(tokens), x)
        )
    return take_unique_rows(x, *(_for_heads(each, x) for each in (_inside(tokens), tokens.slots, tokens.marks)))


def _inside(tokens):
    return ops.minimum(tokens.positions, shape(tokens.marks)[1] - 1)


def _for_heads(x, heads):
    """Returns (B, X) as (B, N, X)."""
    batch, length = shape(x)
    return ops.broadcast_to(x[:, None], (batch, shape(heads)[1], length))
