"""Images as inputs of attention layers: the tokens are the pixels, row by row."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import SIZE, assert_close, normal, to_numpy
from tests.draws import first
from tf_sparse_attention import layers

HEIGHT, WIDTH = 4, 6
LAYERS = {
    "local": lambda: layers.LocalAttention(2, 4, window=7, position="relative"),
    "local_2d": lambda: layers.LocalAttention2D(2, 4, width=WIDTH, block_shape=(2, 2), position="rotary_2d"),
    "routing": lambda: layers.RoutingAttention(2, 4, num_clusters=3, cluster_size=8, seed=0),
    "mixed": lambda: layers.MixedAttention([LAYERS["local"](), LAYERS["routing"]()]),
    "global": lambda: layers.GlobalLocalAttention(2, 4, window=3),
}


def as_sequence(x):
    x = to_numpy(x)
    return x.reshape(len(x), -1, *x.shape[3:])


def images(batch=2, seed=0):
    return normal(batch, HEIGHT, WIDTH, SIZE, seed=seed)


@pytest.mark.parametrize("name", first(["global", "local_2d", "mixed", "local", "routing"], 1))
def test_images_equal_sequences_of_their_pixels(name):
    layer, x, rng = LAYERS[name](), images(), np.random.default_rng(0)
    masks = {"query_mask": rng.random((2, HEIGHT, WIDTH)) < 0.8, "key_mask": rng.random((2, HEIGHT, WIDTH)) < 0.8}
    masks["segment_ids"] = np.sort(rng.integers(0, 2, (2, HEIGHT * WIDTH))).reshape(2, HEIGHT, WIDTH)
    if name == "global":
        masks["global_mask"] = rng.random((2, HEIGHT, WIDTH)) < 0.1
    pairs = {"attention_mask": rng.random((2, layer.num_heads, HEIGHT * WIDTH, HEIGHT * WIDTH)) < 0.8}
    flat = {key: mask.reshape(2, -1) for key, mask in masks.items()} | pairs
    output, weights = layer(x, return_attention_scores=True, **masks, **pairs)
    expected, expected_weights = layer(as_sequence(x), return_attention_scores=True, **flat)
    assert output.shape == (2, HEIGHT, WIDTH, SIZE)
    assert_close(as_sequence(output), expected, 0)
    assert_close(weights, expected_weights, 0)
    pattern = layer.attention_pattern(x, **masks, **pairs)
    np.testing.assert_array_equal(pattern, layer.attention_pattern(as_sequence(x), **flat))


def test_images_attend_to_images_and_sequences():
    layer, x, other = LAYERS["local_2d"](), images(), images(seed=1)[:, :3]
    mask = np.random.default_rng(0).random((2, 3, WIDTH)) < 0.5
    expected = layer(as_sequence(x), as_sequence(other), value_mask=mask.reshape(2, -1))
    assert_close(as_sequence(layer(x, other, value_mask=mask)), expected, 0)
    assert_close(as_sequence(layer(x, as_sequence(other), value_mask=mask.reshape(2, -1))), expected, 0)


@pytest.mark.parametrize("sizes", first([[None, WIDTH], [HEIGHT, WIDTH], [None, None]], 1))
def test_models_of_images_are_made_saved_and_loaded(sizes, tmp_path):
    inputs = keras.Input((*sizes, SIZE))
    outputs, weights = LAYERS["local_2d"]()(inputs, return_attention_scores=True)
    length = None if None in sizes else HEIGHT * WIDTH
    assert outputs.shape == (None, *sizes, SIZE) and weights.shape == (None, 2, length, length)
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")
    x = images(3)[:, : sizes[0] or 2]
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), model(x), 0)
    assert model(x).shape == x.shape


def test_images_or_masks_of_the_wrong_size_are_refused(subtests):
    for name, own, sizes in [
        ("6 pixels wide", {}, (4, 5)),
        ("at most 3 high", {"height": 3}, (4, 6)),
        ("`order`", {"order": "blocks"}, (4, 6)),
        ("`num_class_tokens`", {"num_class_tokens": 1}, (4, 6)),
    ]:
        for x in (np.zeros((2, *sizes, SIZE), "float32"), keras.Input((*sizes, SIZE))):
            with subtests.test(name), pytest.raises(ValueError, match=name):
                layers.LocalAttention2D(2, 4, width=WIDTH, **own)(x)
    for name in ("query_mask", "key_mask", "segment_ids"):
        with subtests.test(name), pytest.raises(ValueError, match=f"`{name}` must have shape"):
            LAYERS["local"]()(images(), **{name: np.ones((2, WIDTH, HEIGHT), "int32")})


@pytest.mark.full
@pytest.mark.parametrize("rank", [4, 3])
def test_a_program_for_any_size_refuses_another_width_or_more_pixels_than_the_layer_has(rank):
    shape, layer, right, wrong = (None,) * (rank - 1) + (SIZE,), LAYERS["local_2d"](), images(), images()[:, :, :5]
    if rank == 3:
        layer = layers.LocalAttention2D(2, 4, width=WIDTH, height=3, block_shape=(2, 2), order="blocks")
        right, wrong = as_sequence(images())[:, :18], as_sequence(images())
    layer.build(shape)
    program = tf.function(layer, input_signature=[tf.TensorSpec(shape)])
    assert_close(program(right), to_numpy(layer(right)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        program(wrong)


def with_mask(x):
    """Return images that carry the mask of the pixels that are not zero."""
    carried = keras.ops.convert_to_tensor(x)
    carried._keras_mask = keras.ops.convert_to_tensor((x != 0).any(-1))
    return carried


def test_implicit_masks_of_images_are_used():
    layer, x, other = LAYERS["local"](), images(), images(seed=1)[:, :3]
    x[0, 2:], x[1, :, 4:], other[0, :2] = 0, 0, 0
    masks = [as_sequence((each != 0).any(-1)) for each in (x, other)]
    expected = layer(as_sequence(x), as_sequence(other), query_mask=masks[0], value_mask=masks[1])
    assert_close(as_sequence(layer(with_mask(x), with_mask(other))), expected, 0)


def test_images_accept_memory_and_a_causal_mask():
    layer, x, memory = layers.LocalAttention(2, 4, window=7), images(), normal(2, 5, SIZE, seed=2)
    output = as_sequence(layer(x, memory=memory, use_causal_mask=True))
    assert_close(output, layer(as_sequence(x), memory=memory, use_causal_mask=True), 0)
    for given in ({}, {"use_causal_mask": True}):  # each of them matters
        assert np.abs(output - to_numpy(layer(as_sequence(x), **given))).max() > 1e-3
