"""Rotary embeddings equal those of KerasHub, and are accurate at every position."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.contracts import assert_close, normal, to_numpy
from tests.draws import first
from tf_sparse_attention.layers import SinusoidalEmbedding
from tf_sparse_attention.ops.positions import Rotary, RotarySettings, cosines_and_sines

HEADS = (0, 2, 1, 3)  # (B, N, T, H) from (B, T, N, H) and back
NEAR, FAR = np.arange(64), np.arange(0, 8193, 512)
YARN = {"rope_type": "yarn", "max_wavelength": 1.5e5}
SETTINGS = {
    "plain": {},
    "linear": {"max_wavelength": 5e5, "scaling_factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "scaling_factor": 3.0},
    "yarn": {**YARN, "scaling_factor": 32.0, "truncate": False},
    "yarn_truncated": {**YARN, "scaling_factor": 8.0, "original_max_position_embeddings": 1024},
    "llama3": {
        "max_wavelength": 5e5,
        "frequency_adjustment_factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "pretraining_sequence_length": 8192,
    },
}
RENAMED = {
    "rope_type": "type",
    "frequency_adjustment_factor": "scaling_factor",
    "pretraining_sequence_length": "original_max_position_embeddings",
}


@pytest.fixture(params=first(["yarn_truncated", "llama3", "dynamic", "yarn", "linear", "plain"], 3))
def pair(request):
    """KerasHub's layer, and our positions of the same settings."""
    keras_hub = pytest.importorskip("keras_hub")
    from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding

    settings = SETTINGS[request.param]
    cls = LlamaRotaryEmbedding if request.param == "llama3" else keras_hub.layers.RotaryEmbedding
    own = {RENAMED.get(name, name): value for name, value in settings.items()}
    if request.param == "llama3":
        own["type"] = "llama3"
    return cls(**settings), Rotary(RotarySettings(**own))


def turned(own, x, positions):
    return np.transpose(to_numpy(own.rotate(ops.convert_to_tensor(np.transpose(x, HEADS)), positions)), HEADS)


@pytest.mark.parametrize("positions", [NEAR, FAR], ids=["near", "far"])
def test_rotations_equal_those_of_keras_hub(pair, positions):
    theirs, own = pair
    x = normal(1, len(positions), 2, 64)
    wanted = to_numpy(theirs.call(ops.convert_to_tensor(x), positions=ops.convert_to_tensor(positions, "float32")))
    # In float32 the angle, up to the last position, has 24 bits; so have its factors.
    by_rounding = 4 * positions[-1] * 2.0**-24 * np.abs(x).max()
    assert_close(turned(own, x, positions), wanted, by_rounding)
    assert_close(turned(own, x.astype("float64"), positions), wanted, by_rounding)


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
