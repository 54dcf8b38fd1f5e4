"""Local attention on images on cases that a reader can compute."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.oracle import definitions
from tests.patterns.small_cases import attend_pattern, column
from tests.programs import differentiate
from tf_sparse_attention.ops.image_positions import ORDERS, Image
from tf_sparse_attention.patterns import ImageBlocks
from tf_sparse_attention.patterns.image import ImageGrid, image_grid


def attend_image(query, key, value, image, num_blocks_before=(1, 1), num_blocks_after=(1, 1), **options):
    around = num_blocks_before, num_blocks_after
    pattern = ImageBlocks(image.width, image.block_shape, *around, image.order, image.height)
    return attend_pattern(pattern, query, key, value, **options)


def seen_from(pixel, shape=(4, 4), block_shape=(2, 2), order="raster", **options):
    """Return a picture of the pixels that one pixel of an image sees, a string for each row: x where it does."""
    image, size = Image(shape[1], block_shape, order, shape[0]), shape[0] * shape[1]
    pixels = definitions.pixels(size, shape[1], block_shape, order, shape[0])
    same = column([0] * size)
    weights = attend_image(same, same, same, image, **options, return_weights=True).weights
    picture = np.full(shape, ".")
    for place, weight in zip(pixels, ops.convert_to_numpy(weights)[0, 0, pixels.index(pixel)], strict=True):
        picture[place] = "x" if weight > 0 else "."
    return ["".join(row) for row in picture]


NEIGHBORS = {"num_blocks_before": (0, 1), "num_blocks_after": (0, 1)}
AROUND = {"num_blocks_before": (1, 0), "num_blocks_after": (0, 1), "shape": (5, 5)}
WIDE = {"shape": (3, 6), "block_shape": (1, 2), "causal": True}
# Pixel, options, and the pixels that it sees.
PICTURES = [
    ((0, 2), {**NEIGHBORS, "causal": True}, ["xxx.", "....", "....", "...."]),
    ((1, 1), {**NEIGHBORS, "causal": True}, ["xxxx", "xx..", "....", "...."]),
    ((0, 2), {**NEIGHBORS, "causal": True, "order": "blocks"}, ["xxx.", "xx..", "....", "...."]),
    ((1, 1), {**NEIGHBORS, "causal": True, "order": "blocks"}, ["xx..", "xx..", "....", "...."]),
    ((0, 0), AROUND, ["xxxx.", "xxxx.", ".....", ".....", "....."]),
    ((3, 2), {**AROUND, "order": "blocks"}, ["..xxx", "..xxx", "..xxx", "..xxx", "....."]),
    ((4, 4), AROUND, [".....", ".....", "....x", "....x", "....x"]),
    ((2, 2), {**WIDE, "order": "blocks"}, ["......", "xxxxxx", "xxx..."]),
]


def test_a_pixel_sees_its_block_and_the_neighbors(subtests):
    for pixel, options, picture in PICTURES:
        with subtests.test(pixel=pixel, **options):
            assert seen_from(pixel, **options) == picture


def test_blocks_that_no_query_can_see_are_not_computed():
    around = (1, 1), (1, 1)
    assert len(image_grid(4096, 4096, Image(64), *around, causal=False).neighbors) == 9
    assert len(image_grid(4096, 4096, Image(64), *around, causal=True).neighbors) == 6
    assert len(image_grid(4096, 4096, Image(64, order="blocks"), *around, causal=True).neighbors) == 5
    small = image_grid(5, 4, Image(3), *around, causal=False)
    assert (small.neighbors, small.image.block_shape) == (((0, 0),), (2, 3))
    assert image_grid(12, 12, Image(3, (2, 8)), *around, causal=False).neighbors == ((-1, 0), (0, 0), (1, 0))


@draws(33, 100)
@given(st.integers(1, 90), st.integers(1, 12), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.booleans())
def test_the_grid_puts_pixels_into_their_blocks_and_back(length, width, block_shape, known):
    height = -(-length // width) + length % 3 if known else None
    for order in ORDERS:
        image, x = Image(width, block_shape, order, height), np.arange(1, length + 1, dtype="int32")
        grid = ImageGrid(length, length, image, ((0, 0),))
        placed = ops.convert_to_numpy(grid.queries(x, -1))
        np.testing.assert_array_equal(ops.convert_to_numpy(grid.restore(placed, -1)), x)
        assert sorted(placed[placed > 0]) == x.tolist()
        blocks = [
            (row // image.block_height) * image.num_columns + column // image.block_width
            for row, column in definitions.pixels(length, width, block_shape, order, height)
        ]
        assert [np.flatnonzero((placed == i).any(1)).item() for i in x] == blocks


def test_pixels_are_moved_without_a_gather_forward_and_backward():
    tf = pytest.importorskip("tensorflow")
    grid = image_grid(75, 75, Image(7, (2, 4), "blocks", height=11), (1, 1), (1, 1), causal=True)

    @tf.function
    def there_and_back(x, cotangent):
        moved, gradients = differentiate(lambda x: (grid.keys(x["keys"], -2),), {"keys": x}, cotangent)
        return moved, gradients, grid.restore(grid.queries(x, -2), -2)

    x = tf.TensorSpec((2, 3, 75, 4))
    places = ops.shape(grid.key_positions())
    graph = there_and_back.get_concrete_function(x, tf.TensorSpec((2, 3, *places, 4))).graph
    found = {operation.type for operation in graph.get_operations()}
    assert {"Slice", "Reshape"} <= found
    assert not any(word in kind for kind in found for word in ("Gather", "Scatter", "StridedSlice"))
