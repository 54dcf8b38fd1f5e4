"""Attention sinks: the first tokens of a sequence, or of each packed document."""

import dataclasses

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.gather import take_numbers, take_rows
from tf_sparse_attention.ops.shapes import in_range, min_if_known, shape, split
from tf_sparse_attention.patterns.arrangement import Arrangement, Grid, OneGroup
from tf_sparse_attention.patterns.cache_policies import CachePolicy, is_full_size
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import Selection, TokenInfo
from tf_sparse_attention.types import Size, Tensor

BLOCK_SIZE = 32


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class First(Pattern):
    """Attention sinks: the first `count` tokens of the sequence, or of the query's packed document. O(T count).

    `Window(256) | First(4)` is the streaming pattern of Xiao et al. 2024. A document is a run of equal `segment_ids`.

    Args:
        count: number of tokens.
        per_document: whether to count from the start of each packed document. False: from the start of the sequence.
            Default True.

    Raises:
        ValueError: if `count` is not a positive integer.
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
    """All queries with the first `count` keys of the sequence, as one group."""

    query_length: Size
    key_length: Size
    count: int

    is_exact = True

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return split(x, self.count, axis, 1)

    def key_positions(self) -> Tensor:
        return np.arange(self.count, dtype="int32")[None]

    def key_exists(self) -> Tensor | None:
        if isinstance(self.key_length, int) and self.key_length >= self.count:
            return None
        return (ops.convert_to_tensor(self.key_positions()) < self.key_length)[:, None, :]


class DocumentGrid(Arrangement):
    """Blocks of queries with the first `count` keys of the document of the first query, and nearby keys.

    Other documents of a block begin inside it. Their first keys are in the block and, if not causal, in the blocks
    after it. O(T (count + b)) with blocks of b positions.

    Args:
        length: T, an integer or a scalar tensor, the length of queries and keys.
        starts: int32 (B, 1, T), where the document of each token begins.
        count: number of first keys per document.
        causal: whether later keys are masked.
    """

    def __init__(self, length: Size, starts: Tensor, count: int, causal: bool) -> None:
        self.key_length = length
        after = 0 if causal else -(-(count - 1) // BLOCK_SIZE)
        self._grid = Grid(length, length, BLOCK_SIZE, 0, after)
        self._begins = ops.arange(self._grid.num_blocks, dtype="int32") * BLOCK_SIZE
        batch = shape(starts)[0]
        begins = ops.broadcast_to(self._begins[None, None], (batch, 1, self._grid.num_blocks))
        first = take_numbers(starts, begins)  # (B, 1, G)
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
        return ops.concatenate([self._first, self._with_batch(self._grid.key_positions())], axis=-1)

    def key_exists(self) -> Tensor:
        # First keys inside the block are among the nearby keys: masking them here avoids counting them twice.
        before = self._first < self._begins[:, None]
        return ops.concatenate([before, self._with_batch(self._grid.key_exists()[:, 0])], axis=-1)[..., None, :]

    def _with_batch(self, x):
        """Broadcast (G, s) to (B, 1, G, s)."""
        return ops.broadcast_to(x[None, None], (shape(self._first)[0], 1, *shape(x)))


@dataclasses.dataclass(frozen=True)
class FirstSlots(CachePolicy):
    """The first `count` positions."""

    count: int
    is_bounded = True

    def num_slots(self, max_length: Size) -> Size:
        return min_if_known(self.count, max_length)

    def has_room(self, length: Size, num_slots: Size) -> bool | Tensor:
        return is_full_size(self.count, num_slots) or length <= num_slots

    def slot(self, token: TokenInfo, num_slots: Size) -> tuple[Tensor, Tensor | None]:
        return in_range(token.position, num_slots), token.position < num_slots
