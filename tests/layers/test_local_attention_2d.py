"""Local attention on images: defaults, reach and sequences that end inside the image."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.cases import Case
from tests.contracts import SIZE, assert_close, compare_with_dense, normal, to_numpy, with_random_weights
from tests.draws import first
from tests.oracle import definitions
from tf_sparse_attention.layers import LocalAttention, LocalAttention2D


def image(**own):
    return LocalAttention2D(2, 4, **{"width": 6, "block_shape": (2, 2), **own})


def pattern(layer, length, causal=False):
    """Return the pattern of the first head, bool (T, T)."""
    return to_numpy(layer.attention_pattern(normal(1, length, SIZE), use_causal_mask=causal))[0, 0]


def test_by_default_a_pixel_sees_its_block_and_the_eight_around_it():
    for order, causal in itertools.product(("raster", "blocks"), (True, False)):
        expected = definitions.image_blocks(48, 48, 6, (2, 2), (1, 1), (1, 1), causal, order)
        np.testing.assert_array_equal(pattern(image(order=order), 48, causal), expected)
    expected = definitions.image_blocks(48, 48, 6, (2, 2), (0, 2), (0, 2), False, "raster")
    np.testing.assert_array_equal(pattern(image(num_blocks_before=(0, 2)), 48), expected)  # as many after as before


def test_in_a_causal_call_blocks_below_make_no_difference_and_those_to_the_right_do():
    one, more, other = (image(num_blocks_after=after) for after in ((0, 1), (2, 1), (0, 0)))
    np.testing.assert_array_equal(pattern(one, 48, causal=True), pattern(more, 48, causal=True))
    assert (pattern(one, 48, causal=True) != pattern(other, 48, causal=True)).any()


def test_a_distance_is_learnt_for_each_row_and_column_that_is_seen():
    layer = image(position="relative_2d", block_shape=(1, 2), num_blocks_before=(1, 0), num_blocks_after=(4, 1))
    layer.build((None, None, SIZE))
    sizes = [layer.get_weights()[at].shape for at, x in enumerate(layer.weights) if "relative" in x.name]
    assert sizes == [(2 * 4 + 1, 4), (2 * 3 + 1, 4)]  # 4 rows below, 3 pixels to the right, on either side


def test_an_image_no_larger_than_a_block_is_dense():
    for order in ("raster", "blocks"):
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


def test_reach_is_the_largest_distance_seen_and_the_size_of_the_table(subtests):
    for own, reach in [
        ({}, 3 * 6 + 3),
        ({"num_blocks_before": (0, 0)}, 1 * 6 + 1),
        ({"num_blocks_before": (0, 0), "num_blocks_after": (1, 5)}, 3 * 6 + 5),
        ({"order": "blocks"}, 12 + 2 * 4 - 1),
        ({"order": "blocks", "num_blocks_before": (0, 1)}, 2 * 4 - 1),
        ({"order": "blocks", "num_blocks_before": (2, 5), "num_blocks_after": (0, 0)}, 24 + 12 - 1),
    ]:
        with subtests.test(own=own, reach=reach):
            layer = image(position="relative", **own)
            assert layer.pattern.reach == reach
            queries, keys = np.nonzero(pattern(layer, 60))
            assert np.abs(queries - keys).max() == reach
            table = next(weight for weight in layer.weights if weight.name == "relative_key")
            assert table.shape == (2 * reach + 1, 4)


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
    unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, SIZE))] * len(inputs), autograph=False)
    assert_close(unknown(*map(tf.constant, inputs)), to_numpy(layer(*inputs)))
