"""Attention sinks: the first tokens of a sequence, or of each packed document."""

import dataclasses

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_numbers, take_rows
from tf_sparse_attention.ops.shapes import in_range, min_if_known, shape, split
from tf_sparse_attention.patterns.arrangement import Arrangement, Grid, OneGroup
from tf_sparse_attention.patterns.cache_policies import CachePolicy, _is_whole
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection
from tf_sparse_attention.patterns.token_info import TokenInfo
from tf_sparse_attention.types import Size, Tensor

BLOCK_SIZE = 32


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class First(Pattern):
    """The first `count` tokens of the sequence; of packed documents those of the query's own. O(T count).

    With a window it is the streaming pattern with attention sinks (Xiao et al. 2024): `Window(256) | First(4)`. A
    document is a run of equal `segment_ids`.

    Args:
        count: tokens.
        per_document: whether packed documents have first tokens of their own. Default True.

    Raises:
        ValueError: for a number that is no positive integer.
    """

    count: int
    per_document: bool = True

    def __post_init__(self) -> None:
        checks.check_count("count", self.count)
        checks.check_switch("per_document", self.per_document)

    @property
    def reach(self) -> int:
        return self.count

    def visible(self, query: TokenInfo, key: TokenInfo) -> tuple[Tensor, ...]:
        if not self.per_document:
            return key.position >= 0, key.position < self.count
        offset = key.position - key.start
        return offset >= 0, offset < self.count, key.start == query.start

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        if call.starts is None or not self.per_document:
            return FirstGrid(call.query_length, call.key_length, self.count)
        return DocumentGrid(call.query_length, call.starts(), self.count, call.causal)

    def cache(self) -> CachePolicy:
        return FirstSlots(self.count)


@dataclasses.dataclass(frozen=True)
class FirstGrid(OneGroup):
    """All queries beside the first `count` keys of the sequence, as one group.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, likewise.
        count: keys, an integer.
    """

    query_length: Size
    key_length: Size
    count: int

    is_exact = True

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return split(x, self.count, axis, 1)

    def key_positions(self) -> Tensor:
        return np.arange(self.count, dtype="int32")[None]

    def inside(self) -> Tensor | None:
        if isinstance(self.key_length, int) and self.key_length >= self.count:
            return None
        return (ops.convert_to_tensor(self.key_positions()) < self.key_length)[:, None, :]


class DocumentGrid(Arrangement):
    """Blocks of queries, each beside itself and the first `count` keys of the document of its first query.

    The queries of a block are of that document or of ones that begin in the block, whose first keys are in the block
    and, if not causal, in the blocks after it. O(T (count + b)) with blocks of b positions.

    Args:
        length: T, an integer or a scalar tensor, the length of queries and keys.
        starts: pair of int32 (B, 1, T), where the documents of queries and keys begin.
        count: first keys of a document.
        causal: whether later keys are hidden.
    """

    def __init__(self, length: Size, starts: tuple[Tensor, Tensor], count: int, causal: bool) -> None:
        self.key_length = length
        after = 0 if causal else -(-(count - 1) // BLOCK_SIZE)
        self._grid = Grid(length, length, BLOCK_SIZE, 0, after)
        self._begins = ops.arange(self._grid.num_blocks, dtype="int32") * BLOCK_SIZE
        batch = shape(starts[0])[0]
        begins = ops.broadcast_to(self._begins[None, None], (batch, 1, self._grid.num_blocks))
        first = take_numbers(starts[0], begins)  # (B, 1, G), where the document of a block's first query begins
        self._first = first[..., None] + ops.arange(count, dtype="int32")  # (B, 1, G, count)

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.queries(x, axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        batch, _, num_blocks, count = shape(self._first)
        heads = shape(x)[1]
        index = in_range(ops.broadcast_to(self._first, (batch, heads, num_blocks, count)), self.key_length)
        index = ops.reshape(index, (batch, heads, num_blocks * count))
        x = ops.broadcast_to(x, (batch, *shape(x)[1:]))
        if axis == -1:
            first = ops.reshape(take_numbers(x, index), (batch, heads, num_blocks, count))
        else:
            first = ops.reshape(take_rows(x, index), (batch, heads, num_blocks, count, shape(x)[-1]))
        return ops.concatenate([first, self._grid.keys(x, axis)], axis=axis)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._grid.restore(x, axis)

    def query_positions(self) -> Tensor:
        return self._grid.query_positions()

    def key_positions(self) -> Tensor:
        return ops.concatenate([self._first, self._near(self._grid.key_positions())], axis=-1)

    def inside(self) -> Tensor:
        # What lies in the block itself is taken from there, so that no key counts twice.
        before = self._first < self._begins[:, None]
        return ops.concatenate([before, self._near(self._grid.inside()[:, 0])], axis=-1)[..., None, :]

    def _near(self, x):
        """Returns (G, s) of the blocks themselves as (B, 1, G, s)."""
        return ops.broadcast_to(x[None, None], (shape(self._first)[0], 1, *shape(x)))


@dataclasses.dataclass(frozen=True)
class FirstSlots(CachePolicy):
    """The first `count` positions."""

    count: int
    is_bounded = True

    def num_slots(self, max_length: Size) -> Size:
        return min_if_known(self.count, max_length)

    def holds(self, length: Size, num_slots: Size) -> bool | Tensor:
        return _is_whole(self.count, num_slots) or length <= num_slots

    def slot(self, place: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return in_range(place.position, num_slots), place.position < num_slots
