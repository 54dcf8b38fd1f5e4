"""Position information for attention: Shaw's relative positions, rotary embeddings and ALiBi behind one interface.

A position object offers three hooks, and every layer calls all three: `rotate` turns queries and keys, `score_bias`
adds to the scores of blocks, `value_bias` adds to the output. None forms a T x S x H tensor.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Self

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import scatter_weights, score_dtype
from tf_sparse_attention.ops.blocks import in_range, matmul_last_axis, shape, slice_axis
from tf_sparse_attention.ops.rotary import PLAIN, RotarySettings, cosines_and_sines
from tf_sparse_attention.types import Tensor


class Distances(NamedTuple):
    """How far the keys of a block are from its queries: key position minus query position.

    Attributes:
        offsets: constant int array (t, s), the distances of slots where they are the same in every block, or None.
        ranks: int tensor (..., t, s), the distances of slots where `offsets` is None.
        tokens: int tensor (..., t, s), the distances in tokens where they differ from those of slots, or None.
        pairs: function that returns the positions of queries (..., t, 1) and of keys (..., 1, s), or None.
        image_blocks: where slots are the pixels of blocks of an image, the rows and columns of a block, and the key
            blocks, pairs of (rows of blocks below the query block, columns to its right); else None.
    """

    offsets: np.ndarray | None = None
    ranks: Tensor | None = None
    tokens: Tensor | None = None
    pairs: Callable[[], tuple[Tensor, Tensor]] | None = None
    image_blocks: tuple[tuple[int, int], tuple[tuple[int, int], ...]] | None = None

    def shifted(self, by: int) -> Self:
        """Returns the distances of keys whose slots lie so many positions further than their places say."""
        offsets, ranks = (None if x is None else x + by for x in (self.offsets, self.ranks))
        return self._replace(offsets=offsets, ranks=ranks)


class NoPosition:
    """Attention that does not know positions; also the base of the other three.

    Attributes:
        has_bias: whether anything is added to scores or output, so that `rotate` is not all there is.
    """

    has_bias = False

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Returns queries or keys (B, N, T, H), turned by their `positions`, int broadcastable to (B, N, T)."""
        return x

    def rotate_for_cache(self, key: Tensor, positions: Tensor) -> Tensor:
        """Returns a key (B, N, 1, H) as a cache keeps it: turned by its position, arguments as of `rotate`."""
        return self.rotate(key, positions)

    def rotate_from_cache(self, key: Tensor, positions: Tensor) -> Tensor:
        """Returns keys (B, M, S, H) of a cache as a query sees them: as they are kept, arguments as of `rotate`."""
        return key

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor | None:
        """Returns what is added to the scores, broadcastable to (..., t, s), or None.

        Args:
            query: scaled queries in blocks (B, N, G, t, H).
            distances: a `Distances`.
        """
        return None

    def value_bias(self, distances: Distances) -> Callable[[Tensor], Tensor] | None:
        """Returns the `value_bias` of `attend`, or None; `distances` as in `score_bias`."""
        return None

    def scaled(self, factor: float) -> Self:
        """Returns these positions for queries that lack a factor of their scale, as those that also serve as keys."""
        return self

    def slice_heads(self, heads: slice) -> Self:
        """Returns the position object of some of the heads, a slice of theirs."""
        return self


@dataclasses.dataclass(frozen=True)
class Relative(NoPosition):
    """Learned vectors for the clipped distance, on keys and values (Shaw et al. 2018, equations 3 and 4).

    score_ts += q_t . key_table[clip(d, -M, M) + M], out_t += sum_s p_ts value_table[clip(d, -M, M) + M] with d the
    distance of slots. All heads share the tables. Cost O(t (t + s) H) a block.

    Args:
        key_table: tensor (2 M + 1, H).
        value_table: tensor (2 M + 1, Hv), or None for the key side alone.
        by_token: take the distance in tokens where it differs from that of slots. Costs a gather as large as the
            scores and O(T M) more memory, about twice the layer; key side only.
    """

    key_table: Tensor
    value_table: Tensor | None = None
    by_token: bool = False

    has_bias = True

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, key_table=self.key_table * factor)

    def with_token_distances(self) -> Self:
        """Returns these positions with distances in tokens, on the key side alone."""
        return dataclasses.replace(self, value_table=None, by_token=True)

    @property
    def reach(self) -> int:
        """M, the largest distance told apart."""
        return (self.key_table.shape[0] - 1) // 2

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor:
        tokens = distances.tokens if self.by_token else None
        query = ops.cast(query, score_dtype(keras.backend.standardize_dtype(query.dtype)))
        if tokens is None and distances.offsets is not None:
            rows = self._rows(self.key_table, query.dtype, distances.offsets)
            return skew(matmul_last_axis(query, ops.transpose(rows)), distances.offsets.shape)
        table = ops.cast(self.key_table, query.dtype)
        by_distance = matmul_last_axis(query, ops.transpose(table))  # (B, N, G, t, 2 M + 1)
        index = self._index(distances.ranks if tokens is None else tokens)
        index = ops.broadcast_to(index, shape(by_distance)[:-1] + (shape(index)[-1],))
        return ops.take_along_axis(by_distance, index, axis=-1)

    def value_bias(self, distances: Distances) -> Callable[[Tensor], Tensor] | None:
        if self.value_table is None:
            return None
        if distances.offsets is not None:
            block = distances.offsets.shape
            return lambda weights: matmul_last_axis(
                unskew(weights, block), self._rows(self.value_table, weights.dtype, distances.offsets)
            )
        index, size = self._index(distances.ranks), self.value_table.shape[0]
        return lambda weights: matmul_last_axis(
            scatter_weights(weights, index, size), ops.cast(self.value_table, weights.dtype)
        )

    def _index(self, distances):
        return ops.clip(distances, -self.reach, self.reach) + self.reach

    def _rows(self, table, dtype, offsets):
        """Returns the table's rows for the distances of a block, lowest first: (t + s - 1, H)."""
        distances = np.arange(offsets.min(), offsets.max() + 1)
        return ops.take(ops.cast(table, dtype), np.clip(distances, -self.reach, self.reach) + self.reach, axis=0)


@dataclasses.dataclass(frozen=True)
class Rotary(NoPosition):
    """Rotary embedding (Su et al. 2021): pairs (x_c, x_{c + H/2}) turned by an angle that grows with the position.

    The score of two turned vectors depends on the distance of their positions. H must be even, or fewer channels turn.

    Args:
        settings: a `RotarySettings`; by default the angle is position 10000^(-2c/H).
    """

    settings: RotarySettings = PLAIN

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        size = x.shape[-1] if self.settings.dim is None else self.settings.dim
        if size < x.shape[-1]:
            turned, rest = ops.split(x, [size], axis=-1)
            return ops.concatenate([self._turn(turned, positions), rest], axis=-1)
        return self._turn(x, positions)

    def _turn(self, x, positions):
        frequencies = self.settings.frequencies(x.shape[-1])
        dtype = "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"
        cosine, sine = (ops.cast(turn, x.dtype) for turn in self._turns(positions, frequencies, dtype))
        if self.settings.amplitude != 1:
            cosine, sine = cosine * self.settings.amplitude, sine * self.settings.amplitude
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def _turns(self, positions, frequencies, dtype):
        """Return cosines and sines (..., T, H / 2) of positions (..., T) for frequencies (H / 2,)."""
        return cosines_and_sines(positions, frequencies, dtype)


@dataclasses.dataclass(frozen=True)
class Alibi(NoPosition):
    """Attention with linear biases (Press et al. 2022): score_ts -= slope_n |d| for head n, d in tokens.

    Args:
        num_heads: N.
        heads: numbers of those of them that the queries are of. None: all.
    """

    num_heads: int
    heads: tuple[int, ...] | None = None

    has_bias = True

    def slice_heads(self, heads: slice) -> Self:
        own = range(self.num_heads) if self.heads is None else self.heads
        return dataclasses.replace(self, heads=tuple(own[heads]))

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor:
        slopes = alibi_slopes(self.num_heads)
        slopes = (slopes if self.heads is None else slopes[list(self.heads)])[:, None, None, None]
        if distances.tokens is None and distances.offsets is not None:
            # The product is made in the program: as a constant it would be N times as large.
            apart = ops.cast(np.abs(distances.offsets).astype("int32"), "float32")
            return ops.convert_to_tensor(-slopes) * apart  # (N, 1, t, s)
        return ops.convert_to_tensor(-slopes) * ops.cast(ops.abs(distances.tokens), "float32")


def make_position(
    kind: str | None,
    num_heads: int,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    rotary: RotarySettings = PLAIN,
) -> NoPosition:
    """Returns the positions of a layer's argument `position`: None, "relative" with its tables, "rotary" or "alibi"."""
    if kind == "relative":
        return Relative(key_table, value_table)
    if kind == "rotary":
        return Rotary(rotary)
    return Alibi(num_heads) if kind == "alibi" else NoPosition()


def rotate_query_and_key(
    position: NoPosition, query: Tensor, key: Tensor, num_memory: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns queries (B, N, T, H) and keys (B, M, S, H) turned by their slots, the first key `num_memory` before."""
    at_queries, at_keys = (ops.arange(shape(x)[-2]) for x in (query, key))
    return position.rotate(query, at_queries + num_memory), position.rotate(key, at_keys)


def rotate_key(position: NoPosition, key: Tensor) -> Tensor:
    """Returns keys (B, M, S, H) turned by their slots from 0 on."""
    return position.rotate(key, ops.arange(shape(key)[-2]))


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns ALiBi's slopes, float32 (N,): 2^(-8/N) .. 2^-8; other counts take every second one of the next power."""
    power = 2 ** int(np.floor(np.log2(num_heads)))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return np.asarray(slopes + between, "float32")


def skew(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Turns values by distance into values by slot: (..., t, t + s - 1) to (..., t, s), y[t, s] = x[t, s - t + t_max].

    Args:
        x: tensor (..., t, t + s - 1), the last axis being the distances of the block, lowest first.
        block: the pair (t, s).
    """
    num_queries, num_keys = block
    lead, row = shape(x)[:-2], num_queries + num_keys
    x = ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, 1)])
    # Reading rows that are one shorter than those written moves each query's row one slot to the left.
    x = slice_axis(ops.reshape(x, lead + (num_queries * row,)), -1, num_queries - 1, num_queries * row - 1)
    return slice_axis(ops.reshape(x, lead + (num_queries, row - 1)), -1, 0, num_keys)


def unskew(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Turns values by slot into values by distance, zero where a slot has none: the inverse of `skew`.

    Args:
        x: tensor (..., t, s).
        block: the pair (t, s).

    Returns:
        Tensor (..., t, t + s - 1).
    """
    num_queries, num_keys = block
    lead, row, rank = shape(x)[:-2], num_queries + num_keys, len(x.shape)
    x = ops.pad(x, [(0, 0)] * (rank - 1) + [(0, num_queries - 1)])
    x = ops.reshape(x, lead + (num_queries * (row - 1),))
    x = ops.pad(x, [(0, 0)] * (rank - 2) + [(num_queries - 1, 1)])
    return slice_axis(ops.reshape(x, lead + (num_queries, row)), -1, 0, row - 1)


@dataclasses.dataclass(frozen=True)
class StreamingRotary(Rotary):
    """Rotary positions counted inside of a cache of first and last tokens (Xiao et al. 2024, section 3.2).

    With s first tokens and a window of w, key p of a query at i is at place p if p < s, else at p - max(0, i - w + 1 -
    s): no place is beyond s + w, however long the text is. Keys are kept unturned and turned where they are read.

    Args:
        settings: a `RotarySettings`.
        num_first: s.
        window: w.
        index: i of each row, int32 (B,).
    """

    num_first: int = 0
    window: int = 1
    index: Tensor = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        gap = ops.maximum(self.index - (self.window - 1 + self.num_first), 0)[:, None, None]
        return super().rotate(x, ops.where(positions < self.num_first, positions, positions - gap))

    def _turns(self, positions, frequencies, dtype):
        # Looked up: compilers compute what they are of anew for each head of keys and each half of its channels.
        size = self.num_first + self.window
        tables = super()._turns(ops.arange(size, dtype="int32"), frequencies, dtype)
        return tuple(ops.take(table, in_range(positions, size), axis=0) for table in tables)

    def rotate_for_cache(self, key: Tensor, positions: Tensor) -> Tensor:
        return key

    def rotate_from_cache(self, key: Tensor, positions: Tensor) -> Tensor:
        return self.rotate(key, positions)
