"""Position information for attention: Shaw's relative positions, rotary embeddings and ALiBi behind one interface.

A position object offers three hooks, and every layer calls all three: `rotate` turns queries and keys, `score_bias`
adds to the scores of blocks, `value_bias` adds to the output. None forms a T x S x H tensor.

Distances are key position minus query position. `offsets` is the constant array (t, s) of distances between the
PLACES of a block; `distances` the tensor (..., t, s) of distances in tokens, None where the two are the same.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.blocks import shape


class NoPosition:
    """Attention that does not know positions; also the base of the other three."""

    def rotate(self, x, positions):
        """Returns queries or keys (B, N, T, H), turned by their `positions`, int broadcastable to (B, N, T)."""
        return x

    def score_bias(self, query, offsets, distances=None):
        """Returns what is added to the scores, broadcastable to (..., t, s), or None.

        Args:
            query: scaled queries in blocks (B, N, G, t, H).
            offsets: int array (t, s), distances of places.
            distances: int tensor (..., t, s), distances in tokens, or None: the same as `offsets`.
        """
        return None

    def value_bias(self, offsets):
        """Returns the `value_bias` of `attend`, or None; `offsets` as in `score_bias`."""
        return None


@dataclasses.dataclass(frozen=True)
class Relative(NoPosition):
    """Learned vectors for the clipped distance, on keys and values (Shaw et al. 2018, equations 3 and 4).

    score_ts += q_t . key_table[clip(d, -M, M) + M], out_t += sum_s p_ts value_table[clip(d, -M, M) + M] with d the
    distance of places. All heads share the tables. Cost O(t (t + s) H) a block.

    Args:
        key_table: tensor (2 M + 1, H).
        value_table: tensor (2 M + 1, Hv), or None for the key side alone.
        by_token: take the distance in tokens for the scores. Costs a gather as large as the scores, O(T M) more
            memory, and has no value side.
    """

    key_table: Any
    value_table: Any = None
    by_token: bool = False

    @property
    def reach(self):
        """M, the largest distance told apart."""
        return (self.key_table.shape[0] - 1) // 2

    def score_bias(self, query, offsets, distances=None):
        if self.by_token and distances is not None:
            scores = ops.matmul(query, ops.transpose(ops.cast(self.key_table, query.dtype)))  # (B, N, G, t, 2 M + 1)
            index = ops.clip(distances, -self.reach, self.reach) + self.reach
            return ops.take_along_axis(scores, ops.broadcast_to(index, shape(scores)[:-1] + (shape(index)[-1],)), -1)
        return skew(ops.matmul(query, ops.transpose(self._rows(self.key_table, query.dtype, offsets))), offsets.shape)

    def value_bias(self, offsets):
        if self.value_table is None:
            return None
        return lambda weights: ops.matmul(unskew(weights, offsets.shape), self._rows(self.value_table, weights.dtype, offsets))

    def _rows(self, table, dtype, offsets):
        """Returns the table's rows for the distances of a block, lowest first: (t + s - 1, H)."""
        distances = np.arange(offsets.min(), offsets.max() + 1)
        return ops.take(ops.cast(table, dtype), np.clip(distances, -self.reach, self.reach) + self.reach, axis=0)


@dataclasses.dataclass(frozen=True)
class Rotary(NoPosition):
    """Rotary embedding (Su et al. 2021): pairs (x_c, x_{c + H/2}) turned by the angle position base^(-2c/H).

    The score of two turned vectors depends on the distance of their positions. H must be even.
    """

    base: float = 10000.0

    def rotate(self, x, positions):
        half = x.shape[-1] // 2
        frequencies = self.base ** (-np.arange(half, dtype="float32") / half)
        dtype = "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"
        angles = ops.cast(positions, dtype)[..., None] * ops.cast(frequencies, dtype)  # (..., T, H / 2)
        cosine, sine = ops.cast(ops.cos(angles), x.dtype), ops.cast(ops.sin(angles), x.dtype)
        first, second = x[..., :half], x[..., half:]
        return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


@dataclasses.dataclass(frozen=True)
class Alibi(NoPosition):
    """Attention with linear biases (Press et al. 2022): score_ts -= slope_n |d| for head n, d in tokens.

    Args:
        num_heads: N.
    """

    num_heads: int

    def score_bias(self, query, offsets, distances=None):
        slopes = alibi_slopes(self.num_heads)[:, None, None, None]
        if distances is None:
            return ops.convert_to_tensor(-slopes * np.abs(offsets), "float32")  # (N, 1, t, s)
        return -slopes * ops.cast(ops.abs(distances), "float32")


def alibi_slopes(num_heads):
    """Returns ALiBi's slopes, float32 (N,): 2^(-8/N) .. 2^-8; other counts take every second one of the next power."""
    power = 2 ** int(np.floor(np.log2(num_heads)))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return np.asarray(slopes + between, "float32")


def skew(x, block):
    """Turns values by distance into values by place: (..., t, t + s - 1) to (..., t, s), y[t, s] = x[t, s - t + t_max].

    Args:
        x: tensor (..., t, t + s - 1), the last axis being the distances of the block, lowest first.
        block: the pair (t, s).
    """
    num_queries, num_keys = block
    lead, row = shape(x)[:-2], num_queries + num_keys
    x = ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, 1)])
    # Reading rows that are one shorter than those written moves each query's row one place to the left.
    x = ops.reshape(x, lead + (num_queries * row,))[..., num_queries - 1 : num_queries * row - 1]
    return ops.reshape(x, lead + (num_queries, row - 1))[..., :num_keys]


def unskew(x, block):
    """Turns values by place into values by distance, zero where a place has none: the inverse of `skew`.

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
    return ops.reshape(x, lead + (num_queries, row))[..., : row - 1]
