"""Positions by their coordinates in a grid."""

import keras
import numpy as np
import pytest

from tests.contracts import normal
from tf_sparse_attention.layers import GridEmbedding


def test_each_position_gets_the_vectors_of_its_coordinates():
    layer = GridEmbedding((2, 3, 2))
    layer.build((None, None, 4))
    tables = [np.asarray(table) for table in layer.tables]
    added = np.asarray(layer(np.zeros((1, 12, 4), "float32")))[0]
    for position in range(12):
        row, column, channel = np.unravel_index(position, (2, 3, 2))
        np.testing.assert_allclose(added[position], tables[0][row] + tables[1][column] + tables[2][channel], rtol=1e-6)


def test_it_is_added_to_what_is_there_and_shorter_sequences_are_prefixes():
    layer, x = GridEmbedding((3, 4), seed=1), normal(2, 12, 4)
    whole = np.asarray(layer(x))
    np.testing.assert_allclose(whole - x, np.broadcast_to(np.asarray(layer(0 * x)), x.shape), atol=1e-6)
    np.testing.assert_array_equal(layer(x[:, :7]), whole[:, :7])


def test_a_sequence_longer_than_the_grid_is_an_error():
    with pytest.raises(ValueError, match=r"`inputs` must be no longer than the grid. Received: 13 positions"):
        GridEmbedding((3, 4))(normal(2, 13, 4))


def test_a_model_with_it_is_saved_and_takes_unknown_lengths(tmp_path):
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, GridEmbedding((3, 4))(inputs))
    model.save(tmp_path / "model.keras")
    loaded, x = keras.saving.load_model(tmp_path / "model.keras"), normal(2, 9, 4)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((3, 0), r"`grid` must be a positive integer. Received: grid=0."),
        (12, r"`grid` must be a sequence of integers. Received: grid=12."),
        ((), r"`grid` must have at least one axis. Received: grid=\(\)."),
    ],
)
def test_axes_must_be_counts(grid, message):
    with pytest.raises(ValueError, match=message):
        GridEmbedding(grid)
