"""Position encodings of attention with one interface: relative positions (Shaw), rotary embedding and ALiBi."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Self

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.attend import scatter_weights, score_dtype
from tf_sparse_attention.ops.shapes import matmul_last_axis, shape, slice_axis
from tf_sparse_attention.types import DType, Tensor


@dataclasses.dataclass(frozen=True)
class RotarySettings:
    """Rotation frequencies of a rotary embedding, with the argument names of `keras_hub.layers.RotaryEmbedding`.

    Pair c of `dim` channels rotates by f_c = max_wavelength^(-2 c / dim) radians per position, scaled by `type` and
    the `scaling_factor` s:
    - "linear": f_c / s (Chen et al. 2023).
    - "dynamic": f_c / s^(dim / (dim - 2)).
    - "yarn": f_c / s for pairs with less than `beta_slow` rotations in `original_max_position_embeddings` positions,
      f_c for pairs with more than `beta_fast` rotations, and an interpolation between. Rotated vectors are multiplied
      by 0.1 ln(s) + 1 (Peng et al. 2023).
    - "llama3": f_c / s for pairs with less than `low_freq_factor` rotations, f_c for pairs with more than
      `high_freq_factor`, and an interpolation by the number of rotations between (Llama 3.1).
    - "longrope": f_c / `factors`[c]. With s > 1, rotated vectors are multiplied by
      sqrt(1 + ln(s) / ln(`original_max_position_embeddings`)) (LongRoPE, Ding et al. 2024; "su" in Phi 3).

    Args:
        max_wavelength: base of the frequencies. Default 10000.
        scaling_factor: s. Default 1.
        type: "linear", "dynamic", "yarn", "llama3" or "longrope". Default "linear".
        dim: number of rotated channels, the first ones of a head, even. None: all.
        denominator_dim: replaces dim in the exponent of f_c. None: dim.
        beta_fast: rotations, see "yarn". Default 32.
        beta_slow: rotations, see "yarn". Default 1.
        truncate: whether "yarn" rounds the bounds of the interpolation to whole channels. Default True.
        low_freq_factor: rotations, see "llama3", less than `high_freq_factor`. Default 1.
        high_freq_factor: rotations, see "llama3". Default 4.
        original_max_position_embeddings: training length of the model, in positions. Default 4096.
        factors: one divisor per pair of channels, see "longrope". None for other types.
    """

    max_wavelength: float = 10000.0
    scaling_factor: float = 1.0
    type: str = "linear"
    dim: int | None = None
    denominator_dim: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 4096
    factors: tuple[float, ...] | None = None

    @property
    def amplitude(self) -> float:
        """The factor of rotated vectors."""
        if self.type == "longrope" and self.scaling_factor > 1:
            return math.sqrt(1 + math.log(self.scaling_factor) / math.log(self.original_max_position_embeddings))
        return 0.1 * math.log(self.scaling_factor) + 1 if self.type == "yarn" else 1.0

    def frequencies(self, size: int) -> np.ndarray:
        """Return the radians per position of each pair of `size` channels, float64 (size / 2,)."""
        denominator = size if self.denominator_dim is None else self.denominator_dim
        plain = self.max_wavelength ** (-np.arange(0, size, 2) / denominator)
        if self.factors is not None:
            return plain / np.asarray(self.factors)
        if self.type == "dynamic":
            return plain / self.scaling_factor ** (size / max(1, size - 2))
        scaled = plain / self.scaling_factor
        if self.type == "linear":
            return scaled
        kept = self._llama3_weights(plain) if self.type == "llama3" else self._yarn_weights(size)
        return scaled * (1 - kept) + plain * kept

    def _llama3_weights(self, plain: np.ndarray) -> np.ndarray:
        """Return the weight of each unscaled frequency in "llama3", in [0, 1]."""
        rotations = self.original_max_position_embeddings * plain / (2 * math.pi)
        return np.clip((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)

    def _yarn_weights(self, size: int) -> np.ndarray:
        """Return the weight of each unscaled frequency in "yarn", in [0, 1]."""

        def channel(rotations):
            length = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return size * math.log(length) / (2 * math.log(self.max_wavelength))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        return 1 - np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)


PLAIN = RotarySettings()


# A position has three digits of 10 bits. A digit times a multiple of 2^-14 below 1 is exact in float32.
DIGIT = 2**10
STEP = 2.0**-14


def cosines_and_sines(positions: Tensor, frequencies: np.ndarray, dtype: DType) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines of position times frequency, accurate at every position below 2^30.

    The float32 product would have an error of position x 2^-24 radians, 0.06 at a million. For float32,
    positions are therefore split into digits of base 1024. Each digit is multiplied separately, in rotations instead of
    radians. Whole rotations are dropped before the products are added. The remaining error is about 1e-6.

    Args:
        positions: int (..., T), absolute value below 2^30.
        frequencies: float64 (F,), radians per position, known at trace time.
        dtype: "float32" or "float64" of the result.

    Returns:
        Pair of cosines and sines, (..., T, F).
    """
    if dtype == "float64":
        phase = ops.cast(positions, dtype)[..., None] * ops.convert_to_tensor(frequencies / (2 * math.pi), dtype)
        phase = phase - ops.round(phase)
    else:
        phase = _phase(positions, frequencies)
    angles = phase * (2 * math.pi)
    # Keras computes both in float32 on JAX.
    return ops.cast(ops.cos(angles), dtype), ops.cast(ops.sin(angles), dtype)


def _phase(positions: Tensor, frequencies: np.ndarray) -> Tensor:
    """Return the fractional number of rotations at each position, float32 (..., T, F)."""
    rotations = frequencies / (2 * math.pi) * np.array([[1.0], [DIGIT], [DIGIT**2]])  # (3, F), per unit of a digit
    rotations = rotations - np.round(rotations)
    coarse = np.round(rotations / STEP) * STEP
    fine = rotations - coarse
    digits = ops.cast(_digits(positions), "float32")[..., None]  # (..., T, 3, 1)
    exact = digits * ops.convert_to_tensor(coarse, "float32")
    return ops.sum(exact - ops.round(exact) + digits * ops.convert_to_tensor(fine, "float32"), axis=-2)


def _digits(positions: Tensor) -> Tensor:
    """Return the digits of positions in base 1024, int32 (..., 3), the lowest first."""
    positions = ops.cast(positions, "int32")
    upper = positions // DIGIT
    high = upper // DIGIT
    # By subtraction: runtimes of exported models differ in the remainder of negative numbers.
    return ops.stack([positions - upper * DIGIT, upper - high * DIGIT, high], axis=-1)


class Distances(NamedTuple):
    """Relative positions in a block: key position minus query position.

    Attributes:
        offsets: constant int array (t, s), distances in slots if all blocks have the same, else None.
        ranks: int tensor (..., t, s), distances in slots if `offsets` is None.
        tokens: int tensor (..., t, s), distances in tokens if they differ from the distances in slots, else None.
        pairs: function that returns the positions of queries (..., t, 1) and keys (..., 1, s), or None.
        image_blocks: for slots that are pixels of image blocks, the pair of the block shape (rows, columns) and the
            relative positions of the key blocks (block rows down, block columns to the right); else None.
    """

    offsets: np.ndarray | None = None
    ranks: Tensor | None = None
    tokens: Tensor | None = None
    pairs: Callable[[], tuple[Tensor, Tensor]] | None = None
    image_blocks: tuple[tuple[int, int], tuple[tuple[int, int], ...]] | None = None

    def shifted(self, by: int) -> Self:
        """Return the distances in slots plus `by`."""
        offsets, ranks = (None if x is None else x + by for x in (self.offsets, self.ranks))
        return self._replace(offsets=offsets, ranks=ranks)


class NoPosition:
    """No position encoding, and the base class of the others. No method forms a T x S x H tensor.

    Attributes:
        has_bias: whether the encoding adds to scores or output.
        name: value of the argument `position` of layers.
    """

    has_bias = False
    name: str | None = None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys (B, N, T, H) by their `positions`, int broadcastable to (B, N, T)."""
        return x

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor | None:
        """Return the bias of the scores, broadcastable to (..., t, s), or None.

        Args:
            query: scaled queries in blocks (B, N, G, t, H).
            distances: a `Distances`.
        """
        return None

    def value_bias(self, distances: Distances) -> Callable[[Tensor], Tensor] | None:
        """Return the `value_bias` of `attend`, or None; `distances` as in `score_bias`."""
        return None

    def scaled(self, factor: float) -> Self:
        """Return this encoding with the query-dependent part of its score bias multiplied by `factor`.

        With shared queries and keys, queries have only the square root of the attention scale, and `factor` supplies
        the rest.
        """
        return self

    def slice_heads(self, heads: slice) -> Self:
        """Return the encoding of a slice of the heads."""
        return self


@dataclasses.dataclass(frozen=True)
class Relative(NoPosition):
    """Learned relative positions on keys and values (Shaw et al. 2018, equations 3 and 4).

    score_ts += q_t . key_table[clip(d, -M, M) + M], out_t += sum_s p_ts value_table[clip(d, -M, M) + M], where d is the
    distance in slots. All heads share the tables. Cost O(t (t + s) H) per block.

    Args:
        key_table: tensor (2 M + 1, H).
        value_table: tensor (2 M + 1, Hv), or None for the key side only.
        by_token: whether d is the distance in tokens if it differs from the distance in slots. Key side only. It costs
            a gather as large as the scores and O(T M) memory, about as much as the rest of the layer.
    """

    key_table: Tensor
    value_table: Tensor | None = None
    by_token: bool = False

    name = "relative"
    has_bias = True

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, key_table=self.key_table * factor)

    def with_token_distances(self) -> Self:
        """Return this encoding with distances in tokens, on the key side only."""
        return dataclasses.replace(self, value_table=None, by_token=True)

    @property
    def reach(self) -> int:
        """M, the largest distinct distance."""
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
        """Return the rows of a table for the distances in a block, lowest first: (t + s - 1, H)."""
        distances = np.arange(offsets.min(), offsets.max() + 1)
        return ops.take(ops.cast(table, dtype), np.clip(distances, -self.reach, self.reach) + self.reach, axis=0)


@dataclasses.dataclass(frozen=True)
class Rotary(NoPosition):
    """Rotary embedding (Su et al. 2021): rotates pairs (x_c, x_{c + H/2}) by an angle proportional to the position.

    The score of two rotated vectors depends on their relative position. H, or `settings.dim`, must be even.

    Args:
        settings: a `RotarySettings`. Default: angle = position 10000^(-2c/H).
    """

    settings: RotarySettings = PLAIN

    name = "rotary"

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        size = x.shape[-1] if self.settings.dim is None else self.settings.dim
        if size < x.shape[-1]:
            first, rest = ops.split(x, [size], axis=-1)
            return ops.concatenate([self._rotate_all(first, positions), rest], axis=-1)
        return self._rotate_all(x, positions)

    def _rotate_all(self, x, positions):
        frequencies = self.settings.frequencies(x.shape[-1])
        dtype = "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"
        cosine, sine = (ops.cast(table, x.dtype) for table in cosines_and_sines(positions, frequencies, dtype))
        if self.settings.amplitude != 1:
            cosine, sine = cosine * self.settings.amplitude, sine * self.settings.amplitude
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


@dataclasses.dataclass(frozen=True)
class Alibi(NoPosition):
    """ALiBi (Press et al. 2022): score_ts -= slope_n |d| for head n and distance d in tokens.

    Args:
        num_heads: N.
        slopes: slope of each head. None: `alibi_slopes(num_heads)`.
        heads: indices of the heads of the queries. None: all.
    """

    num_heads: int
    slopes: tuple[float, ...] | None = None
    heads: tuple[int, ...] | None = None

    name = "alibi"
    has_bias = True

    def slice_heads(self, heads: slice) -> Self:
        indices = range(self.num_heads) if self.heads is None else self.heads
        return dataclasses.replace(self, heads=tuple(indices[heads]))

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor:
        slopes = alibi_slopes(self.num_heads) if self.slopes is None else np.asarray(self.slopes, "float32")
        slopes = (slopes if self.heads is None else slopes[list(self.heads)])[:, None, None, None]
        if distances.tokens is None and distances.offsets is not None:
            # The product is computed at run time: as a constant it would be N times as large.
            distance = ops.cast(np.abs(distances.offsets).astype("int32"), "float32")
            return ops.convert_to_tensor(-slopes) * distance  # (N, 1, t, s)
        return ops.convert_to_tensor(-slopes) * ops.cast(ops.abs(distances.tokens), "float32")


def make_position(
    kind: str | None,
    num_heads: int,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
    rotary: RotarySettings = PLAIN,
    slopes: tuple[float, ...] | None = None,
) -> NoPosition:
    """Return the encoding for the `position` argument of a layer: None, "relative", "rotary" or "alibi"."""
    if kind == "relative":
        return Relative(key_table, value_table)
    if kind == "rotary":
        return Rotary(rotary)
    return Alibi(num_heads, slopes) if kind == "alibi" else NoPosition()


def rotate_query_and_key(
    position: NoPosition, query: Tensor, key: Tensor, num_memory: int = 0
) -> tuple[Tensor, Tensor]:
    """Rotate queries (B, N, T, H) and keys (B, M, S, H) by position; the first `num_memory` keys precede query 0."""
    query_positions, key_positions = (ops.arange(shape(x)[-2]) for x in (query, key))
    return position.rotate(query, query_positions + num_memory), position.rotate(key, key_positions)


def rotate_key(position: NoPosition, key: Tensor) -> Tensor:
    """Rotate keys (B, M, S, H) by their positions 0 .. S - 1."""
    return position.rotate(key, ops.arange(shape(key)[-2]))


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Return the slopes of ALiBi, float32 (N,): 2^(-8/N) .. 2^-8 if N is a power of 2.

    If N is not a power of 2, return the slopes of the next lower power P, followed by the first N - P of every second
    slope of 2 P.
    """
    power = 2 ** int(np.floor(np.log2(num_heads)))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (num_heads - power), 2)]
    return np.asarray(slopes + between, "float32")


def skew(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Convert values indexed by distance to values indexed by slot: y[i, j] = x[i, j - i + t - 1].

    Args:
        x: tensor (..., t, t + s - 1), with the distances of the block on the last axis, lowest first.
        block: the pair (t, s).

    Returns:
        Tensor (..., t, s).
    """
    num_queries, num_keys = block
    lead, row = shape(x)[:-2], num_queries + num_keys
    x = ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, 1)])
    # Rows that are read are one shorter than rows that were written, which shifts each row by one slot to the left.
    x = slice_axis(ops.reshape(x, lead + (num_queries * row,)), -1, num_queries - 1, num_queries * row - 1)
    return slice_axis(ops.reshape(x, lead + (num_queries, row - 1)), -1, 0, num_keys)


def unskew(x: Tensor, block: tuple[int, int]) -> Tensor:
    """Convert values indexed by slot to values indexed by distance, the inverse of `skew`; zeros elsewhere.

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
