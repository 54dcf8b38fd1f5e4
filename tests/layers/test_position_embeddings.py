"""Sinusoidal position embeddings, in the channel order of tensor2tensor, and axial position embeddings."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.contracts import normal
from tests.goldens import goldens_of, read_case
from tf_sparse_attention.layers import GridEmbedding

goldens = goldens_of("routing_transformer/misc.npz")


@pytest.mark.parametrize("size", [7, 8])
def test_the_signal_is_the_published_one(size, goldens):
    _, arrays = read_case(goldens, f"timing_1d_16x{size}")
    signal = tsa.layers.SinusoidalEmbedding()(np.zeros((1, 16, size), "float32"))
    np.testing.assert_allclose(signal, arrays["out"], atol=1e-6)


def test_a_backbone_adds_it_to_the_inputs_of_the_first_block():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 4}
    plain, timed = (
        tsa.models.Backbone(10, 1, 8, [part], embedding=option, seed=0) for option in (None, {"sinusoidal": True})
    )
    timed.set_weights(plain.get_weights())
    ids = np.zeros((1, 6), "int32")
    assert np.abs(np.diff(np.asarray(timed(ids)), axis=1)).max() > 1e-3
    np.testing.assert_allclose(np.diff(np.asarray(plain(ids)), axis=1), 0, atol=1e-6)


def test_a_wrong_option_is_named():
    part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 4}
    for embedding, length in (({"sinusoidal": 1}, 0), ({"sinusoidal": True}, 4), ({"timing": True}, 0)):
        with pytest.raises(ValueError, match="embedding"):
            tsa.models.Backbone(10, 1, 8, [part], embedding=embedding, memory_length=length)


def test_each_position_gets_the_vectors_of_its_coordinates():
    layer = GridEmbedding((2, 3, 2))
    layer.build((None, None, 4))
    tables = [np.asarray(table) for table in layer.tables]
    added = np.asarray(layer(np.zeros((1, 12, 4), "float32")))[0]
    for position in range(12):
        row, column, channel = np.unravel_index(position, (2, 3, 2))
        np.testing.assert_allclose(added[position], tables[0][row] + tables[1][column] + tables[2][channel], rtol=1e-6)


def test_grid_vectors_are_added_and_shorter_sequences_are_prefixes():
    layer, x = GridEmbedding((3, 4), seed=1), normal(2, 12, 4)
    whole = np.asarray(layer(x))
    np.testing.assert_allclose(whole - x, np.broadcast_to(np.asarray(layer(0 * x)), x.shape), atol=1e-6)
    np.testing.assert_array_equal(layer(x[:, :7]), whole[:, :7])


def test_a_model_with_position_embeddings_is_saved_and_accepts_unknown_lengths(tmp_path):
    inputs = keras.Input((None, 4))
    sinusoidal = tsa.layers.SinusoidalEmbedding(max_wavelength=50)
    model = keras.Model(inputs, sinusoidal(GridEmbedding((3, 4))(inputs)))
    model.save(tmp_path / "model.keras")
    loaded, x = keras.saving.load_model(tmp_path / "model.keras"), normal(2, 9, 4)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
