"""Frequencies and angles of rotary embeddings (Su et al. 2021), with the RoPE scalings for longer sequences."""

import dataclasses
import math

import numpy as np
from keras import ops

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

    Args:
        max_wavelength: base of the frequencies. Default 10000.
        scaling_factor: s. Default 1.
        type: "linear", "dynamic", "yarn" or "llama3". Default "linear".
        dim: number of rotated channels, the first ones of a head, even. None: all.
        denominator_dim: replaces dim in the exponent of f_c. None: dim.
        beta_fast: rotations, see "yarn". Default 32.
        beta_slow: rotations, see "yarn". Default 1.
        truncate: whether "yarn" rounds the bounds of the interpolation to whole channels. Default True.
        low_freq_factor: rotations, see "llama3", less than `high_freq_factor`. Default 1.
        high_freq_factor: rotations, see "llama3". Default 4.
        original_max_position_embeddings: training length of the model, in positions. Default 4096.
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

    @property
    def amplitude(self) -> float:
        """The factor of rotated vectors."""
        return 0.1 * math.log(self.scaling_factor) + 1 if self.type == "yarn" else 1.0

    def frequencies(self, size: int) -> np.ndarray:
        """Return the radians per position of each pair of `size` channels, float64 (size / 2,)."""
        denominator = size if self.denominator_dim is None else self.denominator_dim
        plain = self.max_wavelength ** (-np.arange(0, size, 2) / denominator)
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
