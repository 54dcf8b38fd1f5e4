"""The small parts of the published models: feed-forward, norms, shifts, embeddings of positions and channels."""

import keras
import numpy as np

import tf_sparse_attention as tsa
from tests.goldens import block_by_block, goldens_of, names_of_cases, read_case
from tf_sparse_attention.ops import kmeans

goldens = goldens_of("routing_transformer/misc.npz")

HERE = {"gelu_tanh", "geglu", "dense_relu_dense", "layer_norm", "layer_norm_noscale", "right_shift_1d_q4"}
HERE |= {"right_shift_2d_q2x4", "pos_emb_2d"}
ELSEWHERE = {"timing_1d_16x7", "timing_1d_16x8", "jsd", "jsd_same", "jsd_disjoint", "kl"}
ELSEWHERE |= {"channel_emb"}  # an embedding of Keras


def test_all_cases_are_compared_here_or_beside_what_they_are_of(goldens):
    assert set(names_of_cases(goldens)) == HERE | ELSEWHERE


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
