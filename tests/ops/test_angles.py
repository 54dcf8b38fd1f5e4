"""Cosines and sines of positions, against float64."""

import keras
import numpy as np
import pytest

from tests.contracts import to_numpy
from tf_sparse_attention.layers import SinusoidalEmbedding
from tf_sparse_attention.ops.angles import cosines_and_sines

FREQUENCIES = 10000.0 ** (-np.arange(0, 64, 2) / 64)
POSITIONS = [0, 1, -1, 1023, 1024, 8191, 2**20 - 1, 2**20, 10**6, 10**8, 2**30 - 1, -(2**29)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_angles_are_accurate_at_every_position(dtype):
    angles = np.array(POSITIONS, "float64")[:, None] * FREQUENCIES
    found = cosines_and_sines(np.array(POSITIONS, "int32"), FREQUENCIES, dtype)
    tolerance = 2e-6 if dtype == "float32" else 1e-7
    for x, expected in zip(found, (np.cos(angles), np.sin(angles)), strict=True):
        assert keras.backend.standardize_dtype(x.dtype) == dtype
        np.testing.assert_allclose(to_numpy(x), expected, atol=tolerance)


def test_the_sinusoidal_embedding_is_accurate_far_away():
    rates = 10000.0 ** (-np.arange(4) / 3)
    angles = np.array([[10**8]], "float64") * rates
    found = SinusoidalEmbedding()(np.zeros((1, 1, 8), "float32"), positions=np.array([[10**8]]))
    np.testing.assert_allclose(to_numpy(found)[0], np.concatenate([np.sin(angles), np.cos(angles)], -1), atol=2e-6)
