"""Image codec: exact round trips in both orders, and positions that match the models."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.layers import GridEmbedding
from tf_sparse_attention.ops.image_positions import Image


@st.composite
def codecs(draw):
    rows, columns, channels = (draw(st.integers(1, 4)) for _ in range(3))
    down, across = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        return ImageCodec(rows * down, columns * across, channels, "blocks", (rows, columns))
    return ImageCodec(rows * down, columns * across, channels)


def images_of(codec, count=3, seed=0):
    return np.random.default_rng(seed).integers(256, size=(count, *codec.shape), dtype=np.uint8)


@draws(15, 200)
@given(codec=codecs(), count=st.integers(0, 3), seed=st.integers(0, 2**31))
def test_images_have_an_exact_round_trip(codec, count, seed):
    images = images_of(codec, count, seed)
    ids = codec.encode(images)
    assert ids.dtype == np.int32 and ids.shape == (count, codec.length)
    assert ((ids >= 1) & (ids < codec.vocabulary_size)).all()
    np.testing.assert_array_equal(codec.decode(ids), images)
    for image, row in zip(images, ids, strict=True):
        np.testing.assert_array_equal(codec.encode(image), row)
        np.testing.assert_array_equal(codec.decode(row.tolist()), image)


@draws(15, 200)
@given(codec=codecs())
def test_a_sequence_has_the_documented_order(codec):
    """Compare with loops over blocks, rows, columns and channels."""
    height, width, channels = codec.shape
    rows, columns = codec.block_shape or (height, width)
    image = images_of(codec, 1)[0]
    expected = [
        int(image[row, column, channel]) + 1
        for top in range(0, height, rows)
        for left in range(0, width, columns)
        for row in range(top, top + rows)
        for column in range(left, left + columns)
        for channel in range(channels)
    ]
    assert codec.encode(image).tolist() == expected


@draws(10, 100)
@given(codec=codecs())
def test_positions_match_local_attention_of_images(codec):
    height, width, channels = codec.shape
    rows, columns = codec.block_shape or (1, 1)
    image = Image(width * channels, (rows, columns * channels), codec.order, height)
    row, column = (np.asarray(found) for found in image.coordinates(np.arange(codec.length)))
    np.testing.assert_array_equal(
        codec.positions()[row, column // channels, column % channels], np.arange(codec.length)
    )


@pytest.mark.parametrize(
    "codec", [ImageCodec(4, 6, 2), ImageCodec(4, 6, 2, "blocks", (2, 3))], ids=["raster", "blocks"]
)
def test_a_grid_embedding_has_a_vector_per_row_column_and_channel(codec):
    layer = GridEmbedding(codec.grid, seed=0)
    vectors = np.asarray(layer(np.zeros((1, codec.length, 3), "float32")))[0][codec.positions()]  # (H, W, C, 3)
    blocks = codec.block_shape or (codec.height, codec.width)
    tables = [np.asarray(table) for table in layer.tables]
    for (row, column, channel), vector in zip(np.ndindex(codec.shape), vectors.reshape(-1, 3), strict=True):
        axes = (row, column, channel)
        if codec.block_shape:
            axes = (row // blocks[0], column // blocks[1], row % blocks[0], column % blocks[1], channel)
        np.testing.assert_allclose(vector, sum(table[at] for table, at in zip(tables, axes, strict=True)), atol=1e-6)


@pytest.mark.parametrize(
    "codec", [ImageCodec(4, 6, 1), ImageCodec(4, 6, 3, "blocks", (2, 3))], ids=["raster", "blocks"]
)
def test_a_graph_equals_numpy(codec):
    images = images_of(codec, 5)
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(2)
    ids = np.concatenate([*dataset.map(codec.encode).as_numpy_iterator()])
    np.testing.assert_array_equal(ids, codec.encode(images))
    back = np.concatenate([*dataset.map(lambda x: codec.decode(codec.encode(x))).as_numpy_iterator()])
    np.testing.assert_array_equal(back, images)
    one = codec.decode(codec.encode(tf.constant(images[0])))
    assert one.dtype == tf.uint8 and one.shape == codec.shape
    outside = codec.decode(tf.fill((codec.length,), 0)), codec.decode(tf.fill((codec.length,), 999))
    assert [x.numpy().ravel()[0] for x in outside] == [0, 255]


def test_ids_above_a_row_of_blocks_end_before_its_first_byte():
    codec = ImageCodec(4, 4, 1, "blocks", (2, 2))
    # The first block has rows of two bytes, so its second row begins at the third byte.
    assert [codec.num_ids_above(row) for row in range(5)] == [0, 2, 8, 10, 16]
    assert [ImageCodec(2, 3, 1).num_ids_above(row) for row in range(3)] == [0, 3, 6]


def test_a_config_round_trip_gives_an_equal_codec():
    codec = ImageCodec(4, 6, 1, "blocks", (2, 3))
    assert ImageCodec.from_config(codec.get_config()).get_config() == codec.get_config()
    assert ImageCodec.from_config(codec.get_config()).grid == (2, 2, 2, 3, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"height": 0}, r"`height` must be a positive integer\. Received: height=0"),
        ({"order": "columns"}, r"`order` must be one of .*Received: order='columns'"),
        (
            {"order": "blocks"},
            r"`block_shape` must be given for the order 'blocks'.*Received: order='blocks', block_sh",
        ),
        (
            {"block_shape": (2, 2)},
            r"`block_shape` must be given for .* None for other orders\. Received: order='raster'",
        ),
        (
            {"order": "blocks", "block_shape": (2, 4)},
            r"`block_shape` must divide the height and width of the image\. Received: block_shape=\(2, 4\), height=4",
        ),
    ],
)
def test_invalid_arguments_are_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageCodec(**{"height": 4, "width": 6, **arguments})


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 6, 3)), r"`images` must be uint8 .*\(4, 6, 3\)\. Received: float64 of shape \(4, 6, 3\)"),
        (np.zeros((6, 4, 3), np.uint8), r"Received: uint8 of shape \(6, 4, 3\)"),
        (tf.zeros((2, 4, 6, 1), tf.uint8), r"Received: uint8 of shape \(2, 4, 6, 1\)"),
    ],
)
def test_invalid_images_are_an_error(images, message):
    with pytest.raises(ValueError, match=message):
        ImageCodec(4, 6).encode(images)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0] * 24, r"`ids` must be in \[1, 257\)\. Received: id 0"),
        ([257] * 24, r"Received: id 257"),
        ([1] * 23, r"`ids` must have the shape \(B, 24\) or \(24,\)\. Received: \(23,\)"),
    ],
)
def test_invalid_ids_are_an_error(ids, message):
    with pytest.raises(ValueError, match=message):
        ImageCodec(4, 6, 1).decode(ids)
