"""The small parts of the published models: feed-forward, norms, shifts and position embeddings."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.contracts import normal
from tests.goldens import block_by_block, goldens_of, read_case
from tf_sparse_attention.layers import GridEmbedding
from tf_sparse_attention.ops import kmeans

goldens = goldens_of("routing_transformer/misc.npz")


def test_the_feed_forward_and_its_activation_are_published(goldens):
    _, arrays = read_case(goldens, "gelu_tanh")
    np.testing.assert_allclose(keras.ops.gelu(arrays["x"], approximate=True), arrays["out"], atol=1e-6)
    for name, activation, weights in (
        ("geglu", "geglu", ["weight1/kernel", "weight2/kernel", "weight3/kernel"]),
        ("dense_relu_dense", "relu", ["conv1/kernel", "conv1/bias", "conv2/kernel", "conv2/bias"]),
    ):
        settings, arrays = read_case(goldens, name)
        layer = tsa.layers.FeedForward(settings["filter"], activation)
        layer.build(arrays["x"].shape)
        layer.set_weights([arrays[f"var/{weight}"] for weight in weights])
        np.testing.assert_allclose(layer(arrays["x"]), arrays["out"], atol=1e-6)


def test_the_norms_of_blocks_and_of_routed_queries_are_published(goldens):
    settings, arrays = read_case(goldens, "layer_norm")
    part = tsa.layers.LocalAttention(1, 6, window=2)
    block = tsa.layers.TransformerBlock(part, norm="post", epsilon=settings["epsilon"])
    block.build(arrays["x"].shape)
    norm = block._attention_norm
    norm.set_weights([arrays[f"var/layer_norm/layer_norm_{name}"] for name in ("scale", "bias")])
    np.testing.assert_allclose(norm(arrays["x"]), arrays["out"], atol=1e-6)
    _, arrays = read_case(goldens, "layer_norm_noscale")  # of routed queries
    np.testing.assert_allclose(kmeans.normalize(arrays["x"]), arrays["out"], atol=1e-6)


def shifted(x):
    """Return a sequence (B, T, D) as a language model is given its targets: the one before each, zeros first."""
    numbers = np.broadcast_to(np.arange(1, x.shape[1] + 1, dtype="int32"), x.shape[:2])
    inputs, _, _ = tsa.data.pack_windows(numbers, use_packing=False)
    return np.take_along_axis(np.pad(x, [(0, 0), (1, 0), (0, 0)]), np.asarray(inputs["token_ids"])[..., None], axis=1)


def test_targets_move_right_over_the_whole_length_and_in_the_order_of_blocks(goldens):
    _, arrays = read_case(goldens, "right_shift_1d_q4")
    np.testing.assert_array_equal(shifted(arrays["x"]), arrays["out"])
    settings, arrays = read_case(goldens, "right_shift_2d_q2x4")
    x, expected = (block_by_block(arrays[key][:, None], settings["block"])[:, 0] for key in ("x", "out"))
    np.testing.assert_array_equal(shifted(x), expected)


def test_positions_of_two_axes_are_published_but_for_their_scale(goldens):
    settings, arrays = read_case(goldens, "pos_emb_2d")
    rows, columns, size = arrays["x"].shape[1:]
    layer = tsa.layers.GridEmbedding((rows, columns))
    layer.build((None, rows * columns, size))
    tables = [arrays[f"var/pos_{axis}"].reshape(settings["max_length"], size) for axis in (0, 1)]
    layer.set_weights([tables[0][:rows] * size**0.5, tables[1][:columns] * size**0.5])
    found = layer(arrays["x"].reshape(-1, rows * columns, size))
    np.testing.assert_allclose(found, arrays["out"].reshape(-1, rows * columns, size), atol=1e-5)


@pytest.mark.parametrize("size", [7, 8])
def test_the_signal_is_the_published_one(size, goldens):
    _, arrays = read_case(goldens, f"timing_1d_16x{size}")
    signal = tsa.layers.SinusoidalEmbedding()(np.zeros((1, 16, size), "float32"))
    np.testing.assert_allclose(signal, arrays["out"], atol=1e-6)


PART = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 4, "window": 4}


def test_a_backbone_adds_it_to_the_inputs_of_the_first_block():
    options = None, {"sinusoidal": True}
    plain, timed = (tsa.models.Backbone(10, 1, 8, [PART], embedding=option, seed=0) for option in options)
    timed.set_weights(plain.get_weights())
    ids = np.zeros((1, 6), "int32")
    assert np.abs(np.diff(np.asarray(timed(ids)), axis=1)).max() > 1e-3
    np.testing.assert_allclose(np.diff(np.asarray(plain(ids)), axis=1), 0, atol=1e-6)


def test_a_wrong_option_is_named():
    for embedding, length in (({"sinusoidal": 1}, 0), ({"sinusoidal": True}, 4), ({"timing": True}, 0)):
        with pytest.raises(ValueError, match="embedding"):
            tsa.models.Backbone(10, 1, 8, [PART], embedding=embedding, memory_length=length)


def test_each_position_gets_the_vectors_of_its_coordinates():
    layer = GridEmbedding((2, 3, 2))
    layer.build((None, None, 4))
    tables, x = [np.asarray(table) for table in layer.tables], normal(2, 11, 4)  # shorter than the grid
    added = np.asarray(layer(x)) - x
    for position in range(11):
        row, column, channel = np.unravel_index(position, (2, 3, 2))
        expected = tables[0][row] + tables[1][column] + tables[2][channel]
        np.testing.assert_allclose(added[:, position], [expected] * 2, atol=1e-6)
