"""Cosines and sines of angles that grow with the position."""

import math

import numpy as np
from keras import ops

from tf_sparse_attention.types import DType, Tensor

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
