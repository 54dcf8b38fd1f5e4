"""Codecs of images and samples: exact round trips, and positions that match the models."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.draws import draws
from tf_sparse_attention.data import AudioCodec, ImageCodec
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
def test_images_have_the_documented_order_and_an_exact_round_trip(codec, count, seed):
    images = images_of(codec, count, seed)
    ids = codec.encode(images)
    assert ids.dtype == np.int32 and ids.shape == (count, codec.length)
    np.testing.assert_array_equal(codec.decode(ids), images)
    height, width, channels = codec.shape
    rows, columns = codec.block_shape or (height, width)
    for image, row in zip(images, ids, strict=True):
        assert row.tolist() == [
            int(image[y, x, channel]) + 1
            for top in range(0, height, rows)
            for left in range(0, width, columns)
            for y in range(top, top + rows)
            for x in range(left, left + columns)
            for channel in range(channels)
        ]
        np.testing.assert_array_equal(codec.encode(image), row)
        np.testing.assert_array_equal(codec.decode(row.tolist()), image)
    # Positions equal those of local attention of images.
    rows, columns = codec.block_shape or (1, 1)
    grid = Image(width * channels, (rows, columns * channels), codec.order, height)
    y, x = (np.asarray(found) for found in grid.coordinates(np.arange(codec.length)))
    np.testing.assert_array_equal(codec.positions()[y, x // channels, x % channels], np.arange(codec.length))


both_orders = pytest.mark.parametrize(
    "codec", [ImageCodec(4, 6, 2), ImageCodec(4, 6, 3, "blocks", (2, 3))], ids=["raster", "blocks"]
)


@both_orders
def test_a_grid_embedding_has_a_vector_per_row_column_and_channel(codec):
    layer = GridEmbedding(codec.grid, seed=0)
    vectors = np.asarray(layer(np.zeros((1, codec.length, 3), "float32")))[0][codec.positions()]  # (H, W, C, 3)
    tables = [np.asarray(table) for table in layer.tables]
    for (row, column, channel), vector in zip(np.ndindex(codec.shape), vectors.reshape(-1, 3), strict=True):
        axes = (row, column, channel)
        if codec.block_shape:
            rows, columns = codec.block_shape
            axes = (row // rows, column // columns, row % rows, column % columns, channel)
        np.testing.assert_allclose(vector, sum(table[at] for table, at in zip(tables, axes, strict=True)), atol=1e-6)


@both_orders
def test_a_graph_and_a_copy_from_the_config_equal_numpy(codec):
    images = images_of(codec, 5)
    copy = ImageCodec.from_config(codec.get_config())
    assert copy.grid == codec.grid
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(2)
    ids = np.concatenate([*dataset.map(copy.encode).as_numpy_iterator()])
    np.testing.assert_array_equal(ids, codec.encode(images))
    back = np.concatenate([*dataset.map(lambda x: copy.decode(copy.encode(x))).as_numpy_iterator()])
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


def test_invalid_arguments_are_errors(subtests):
    for name, options in [
        ("height", {"height": 0}),
        ("order", {"order": "columns"}),
        ("block_shape", {"order": "blocks"}),
        ("block_shape", {"block_shape": (2, 2)}),
        ("block_shape", {"order": "blocks", "block_shape": (2, 4)}),
    ]:
        with subtests.test(name, options=options), pytest.raises(ValueError, match=f"`{name}`"):
            ImageCodec(**{"height": 4, "width": 6, **options})
    for images in (np.zeros((4, 6, 3)), np.zeros((6, 4, 3), np.uint8), tf.zeros((2, 4, 6, 1), tf.uint8)):
        with subtests.test("images", shape=images.shape), pytest.raises(ValueError, match="`images`"):
            ImageCodec(4, 6).encode(images)
    for ids in ([0] * 24, [257] * 24, [1] * 23):
        with subtests.test("ids", ids=ids), pytest.raises(ValueError, match="`ids`"):
            ImageCodec(4, 6, 1).decode(ids)


MU_LAW = AudioCodec(8000)
EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)


def test_ids_are_those_of_the_formula_and_have_a_round_trip():
    ids = MU_LAW.encode(EVERY_SAMPLE)
    companded = [math.copysign(math.log(1 + 255 * abs(x) / 32768) / math.log(256), x) for x in EVERY_SAMPLE.tolist()]
    np.testing.assert_array_equal(ids, [1 + math.floor((value + 1) / 2 * 255 + 0.5) for value in companded])
    back = MU_LAW.decode(ids).astype(int)
    size = np.abs(EVERY_SAMPLE.astype(int))
    assert (np.abs(back - EVERY_SAMPLE) <= np.where(size < 100, 5, 0.05 * size)).all()  # the documented error
    np.testing.assert_array_equal(MU_LAW.encode(MU_LAW.decode(np.arange(1, 257))), np.arange(1, 257))
    assert AudioCodec.from_config(MU_LAW.get_config()).sample_rate == 8000


def test_a_graph_of_samples_equals_numpy():
    rows = EVERY_SAMPLE.reshape(64, 1024)
    ids = tf.function(MU_LAW.encode)(tf.constant(rows))
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(ids, MU_LAW.encode(rows))
    back = tf.function(MU_LAW.decode)(ids)
    assert back.dtype == tf.int16
    np.testing.assert_array_equal(back, MU_LAW.decode(MU_LAW.encode(rows)))
    np.testing.assert_array_equal(MU_LAW.decode(tf.constant([0, 999])), MU_LAW.decode([1, 256]))


def test_invalid_arguments_of_the_codec_of_samples_are_errors():
    with pytest.raises(ValueError, match="`samples`"):
        MU_LAW.encode(np.zeros(3))
    for wrong in (0, 257):
        with pytest.raises(ValueError, match="`ids`"):
            MU_LAW.decode([5, wrong])
    with pytest.raises(ValueError, match="`sample_rate`"):
        AudioCodec(0)
