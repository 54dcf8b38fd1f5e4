"""The frequencies of rotary positions (Su et al. 2021), and how models stretch them over longer sequences."""

import dataclasses
import math

import numpy as np
from keras import ops

from tf_sparse_attention.types import DType, Tensor


@dataclasses.dataclass(frozen=True)
class RotarySettings:
    """How fast each pair of channels turns; the words are those of `keras_hub.layers.RotaryEmbedding`.

    Pair c of `dim` channels turns by f_c = max_wavelength^(-2 c / dim) a position, changed by `type`, s the
    `scaling_factor`:
    - "linear": f_c / s (Chen et al. 2023).
    - "dynamic": f_c / s^(dim / (dim - 2)).
    - "yarn": f_c / s of pairs that turn less than `beta_slow` times in `original_max_position_embeddings` positions,
      f_c of those that turn more than `beta_fast` times, a mixture of both between; and turned vectors are 0.1 ln(s)
      + 1 times as long (Peng et al. 2023).
    - "llama3": f_c / s and f_c likewise, of less than `low_freq_factor` and more than `high_freq_factor` turns, and a
      mixture by the number of turns between (Llama 3.1).

    Args:
        max_wavelength: base of the frequencies. Default 10000.
        scaling_factor: s. Default 1.
        type: "linear", "dynamic", "yarn" or "llama3". Default "linear".
        dim: channels that turn, the first ones of a head, an even number. None: all.
        denominator_dim: what stands for dim under the exponent. None: dim.
        beta_fast: turns, see "yarn". Default 32.
        beta_slow: turns. Default 1.
        truncate: whether "yarn" mixes between whole numbers of channels. Default True.
        low_freq_factor: turns, see "llama3", less than `high_freq_factor`. Default 1.
        high_freq_factor: turns. Default 4.
        original_max_position_embeddings: length that the model was trained for. Default 4096.
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
        """The factor by which turned vectors are longer."""
        return 0.1 * math.log(self.scaling_factor) + 1 if self.type == "yarn" else 1.0

    def frequencies(self, size: int) -> np.ndarray:
        """Returns the angle a position of each pair of `size` channels, float64 (size / 2,)."""
        denominator = size if self.denominator_dim is None else self.denominator_dim
        plain = self.max_wavelength ** (-np.arange(0, size, 2) / denominator)
        if self.type == "dynamic":
            return plain / self.scaling_factor ** (size / max(1, size - 2))
        slow = plain / self.scaling_factor
        if self.type == "linear":
            return slow
        kept = self._kept_by_turns(plain) if self.type == "llama3" else self._kept_by_channels(size)
        return slow * (1 - kept) + plain * kept

    def _kept_by_turns(self, plain: np.ndarray) -> np.ndarray:
        """Returns how much of each frequency "llama3" keeps, in [0, 1]."""
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        return np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)

    def _kept_by_channels(self, size: int) -> np.ndarray:
        """Returns how much of each frequency "yarn" keeps, in [0, 1]."""

        def channel(turns):
            length = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return size * math.log(length) / (2 * math.log(self.max_wavelength))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        return 1 - np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)


PLAIN = RotarySettings()


# A position is split into three digits of 10 bits. A digit times a multiple of 2^-14 below 1 is exact in float32.
DIGIT = 2**10
STEP = 2.0**-14


def cosines_and_sines(positions: Tensor, frequencies: np.ndarray, dtype: DType) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines of position times frequency, accurate at every position below 2^30.

    In float32 the product itself has an error of position x 2^-24 radians, 0.06 at a million. So each digit of the
    position is multiplied by itself, in turns instead of radians, and whole turns are dropped before the products are
    added. The remaining error is about 1e-6.

    Args:
        positions: int (..., T), absolute value below 2^30.
        frequencies: float64 (F,), radians per position, known when the program is made.
        dtype: "float32" or "float64" of the result.

    Returns:
        Pair of the cosines and the sines, (..., T, F).
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
    """Return the turns at each position without whole turns, float32 (..., T, F)."""
    turns = frequencies / (2 * math.pi) * np.array([[1.0], [DIGIT], [DIGIT**2]])  # (3, F), per unit of a digit
    turns = turns - np.round(turns)
    coarse = np.round(turns / STEP) * STEP
    fine = turns - coarse
    digits = ops.cast(_digits(positions), "float32")[..., None]  # (..., T, 3, 1)
    exact = digits * ops.convert_to_tensor(coarse, "float32")
    return ops.sum(exact - ops.round(exact) + digits * ops.convert_to_tensor(fine, "float32"), axis=-2)


def _digits(positions: Tensor) -> Tensor:
    """Return the digits of positions in base 1024, int32 (..., 3), the lowest first."""
    positions = ops.cast(positions, "int32")
    upper = positions // DIGIT
    high = upper // DIGIT
    # By subtraction: runtimes of exported models disagree about remainders of negative numbers.
    return ops.stack([positions - upper * DIGIT, upper - high * DIGIT, high], axis=-1)
