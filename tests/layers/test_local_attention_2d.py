"""Local attention on images as a layer: its defaults, what its arguments may be, and where it can be used."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.cases import Case
from tests.contracts import SIZE, assert_close, compare_with_dense, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.oracle import definitions
from tf_sparse_attention.layers import LocalAttention, LocalAttention2D, MixedAttention
from tf_sparse_attention.models import Backbone

ORDERS = ["raster", "blocks"]


def image(**own):
    return LocalAttention2D(2, 4, **{"width": 6, "block_shape": (2, 2), **own})


def pattern(layer, length, causal=False):
    """Return the pattern of the first head, bool (T, T)."""
    return to_numpy(layer.attention_pattern(normal(1, length, SIZE), use_causal_mask=causal))[0, 0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_pixel_sees_its_block_and_the_eight_around_it_unless_told_otherwise(order, causal):
    own = 6, (2, 2), (1, 1), (1, 1), causal, order
    np.testing.assert_array_equal(pattern(image(order=order), 48, causal), definitions.image_blocks(48, 48, *own))


def test_as_many_blocks_are_seen_after_as_before_unless_told_otherwise():
    np.testing.assert_array_equal(
        pattern(image(num_blocks_before=(0, 2)), 48),
        definitions.image_blocks(48, 48, 6, (2, 2), (0, 2), (0, 2), False, "raster"),
    )


def test_in_a_causal_call_blocks_below_make_no_difference_and_those_to_the_right_do():
    one, more, other = (image(num_blocks_after=after) for after in ((0, 1), (2, 1), (0, 0)))
    np.testing.assert_array_equal(pattern(one, 48, causal=True), pattern(more, 48, causal=True))
    assert (pattern(one, 48, causal=True) != pattern(other, 48, causal=True)).any()


def test_a_distance_is_learnt_for_each_row_and_column_that_is_seen():
    layer = image(position="relative_2d", block_shape=(1, 2), num_blocks_before=(1, 0), num_blocks_after=(4, 1))
    layer.build((None, None, SIZE))
    sizes = [layer.get_weights()[at].shape for at, x in enumerate(layer.weights) if "relative" in x.name]
    assert sizes == [(2 * 4 + 1, 4), (2 * 3 + 1, 4)]  # 4 rows below, 3 pixels to the right, on either side


def test_without_arguments_a_block_is_eight_by_eight_in_a_raster():
    config = LocalAttention2D(2, 4, width=32).get_config()
    names = ("width", "height", "block_shape", "num_blocks_before", "num_blocks_after", "order")
    assert [config[name] for name in names] == [32, None, (8, 8), None, None, "raster"]


@pytest.mark.parametrize("order", ORDERS)
def test_an_image_no_larger_than_a_block_is_dense(order):
    layer = image(block_shape=(8, 8), order=order, height=4)
    assert pattern(layer, 24).all() and pattern(layer, 5).all()
    np.testing.assert_array_equal(pattern(layer, 24, causal=True), np.tri(24))


def test_rows_of_one_pixel_are_local_blocks_of_a_sequence():
    # An image one pixel wide is a sequence.
    two, one = image(width=1, block_shape=(4, 8)), LocalAttention(2, 4, block_size=4)
    for layer in (two, one):
        layer.build((2, 13, SIZE))
        with_random_weights(layer)
    for causal in (True, False):
        outputs = (to_numpy(layer(normal(2, 13, SIZE), use_causal_mask=causal)) for layer in (two, one))
        assert_close(*outputs)


@pytest.mark.parametrize(
    ("own", "reach"),
    [
        ({}, 3 * 6 + 3),
        ({"num_blocks_before": (0, 0)}, 1 * 6 + 1),
        ({"num_blocks_before": (0, 0), "num_blocks_after": (1, 5)}, 3 * 6 + 5),
        ({"order": "blocks"}, 12 + 2 * 4 - 1),
        ({"order": "blocks", "num_blocks_before": (0, 1)}, 2 * 4 - 1),
        ({"order": "blocks", "num_blocks_before": (2, 5), "num_blocks_after": (0, 0)}, 24 + 12 - 1),
    ],
)
def test_reach_is_the_largest_distance_seen_and_the_size_of_the_table(own, reach):
    layer = image(position="relative", **own)
    assert layer.pattern.reach == reach
    queries, keys = np.nonzero(pattern(layer, 60))
    assert np.abs(queries - keys).max() == reach
    table = next(weight for weight in layer.weights if weight.name == "relative_key")
    assert table.shape == (2 * reach + 1, 4)


@pytest.mark.parametrize("order", ORDERS)
def test_two_images_of_the_same_width_attend_to_each_other(order):
    layer, query, value = image(order=order), normal(2, 20, SIZE), normal(2, 33, SIZE, seed=1)
    layer.build(query.shape, value.shape)
    with_random_weights(layer)
    for causal in (True, False):
        _, weights = layer(query, value, use_causal_mask=causal, return_attention_scores=True)
        expected = definitions.image_blocks(20, 33, 6, (2, 2), (1, 1), (1, 1), causal, order)
        np.testing.assert_array_equal(to_numpy(weights)[1, 1] > 0, expected)


def test_the_gradient_of_a_pixel_reaches_its_neighbourhood_and_nothing_else():
    tf = pytest.importorskip("tensorflow")
    layer, x = image(order="blocks", height=7), tf.constant(normal(1, 42, SIZE))
    layer.build(x.shape)
    with_random_weights(layer)
    seen = pattern(layer, 42, causal=True)
    for position in (0, 13, 37):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, use_causal_mask=True)[:, position]
        reached = np.abs(tape.gradient(output, x).numpy()).max((0, 2)) > 0
        np.testing.assert_array_equal(reached, seen[position])


def test_a_backbone_of_images_survives_its_config_and_a_file(tmp_path):
    attention = {"layer": "LocalAttention2D", "num_heads": 2, "key_dim": 4, "width": 5, "block_shape": [2, 2]}
    model = Backbone(vocabulary_size=20, num_layers=1, hidden_dim=SIZE, attention=[attention], seed=1)
    ids = np.arange(50).reshape(2, 25) % 20
    output = to_numpy(model(ids))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded(ids)), output)


def test_heads_on_images_stand_beside_others():
    layer = MixedAttention([image(), LocalAttention(1, 4, window=3)])
    heads = to_numpy(layer.attention_pattern(normal(1, 24, SIZE), use_causal_mask=True))[0]
    expected = definitions.image_blocks(24, 24, 6, (2, 2), (1, 1), (1, 1), True, "raster")
    np.testing.assert_array_equal(heads, [expected, expected, definitions.window(24, 24, 3, True)])


LENGTHS = [(1, 1), (5, 1), (2, 5), (2, 2), (3, 3), (1, 5), (5, 2)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("position", "num_queries", "num_keys"),
    first([(position, *lengths) for position in ("relative_2d", "rotary_2d") for lengths in LENGTHS], 1),
)
def test_sequences_may_end_before_the_pixels_begin(position, num_queries, num_keys):
    layer = image(num_class_tokens=2, position=position)
    inputs = [normal(2, num_queries, SIZE)] + [normal(2, num_keys, SIZE, seed=1)] * (num_queries != num_keys)
    layer.build(*(x.shape for x in inputs))
    with_random_weights(layer)
    compare_with_dense(layer, Case(None, causal=num_queries == num_keys), *inputs)
    unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, SIZE))] * len(inputs))
    assert_close(unknown(*map(tf.constant, inputs)), to_numpy(layer(*inputs)))
