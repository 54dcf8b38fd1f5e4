"""Local attention in two dimensions: blocks of an image and the blocks around them."""

import dataclasses
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.image_positions import ORDERS, Image, nearby_block_mask
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.shapes import are_known, is_known_zero, min_size, pad_axis, shape, slice_axis, split
from tf_sparse_attention.patterns.arrangement import Arrangement, QueryRuns, QuerySubset
from tf_sparse_attention.patterns.cache_policies import CachePolicy, CrossCachePolicy, Ring, WholeSequence
from tf_sparse_attention.patterns.pattern import Call, Pattern
from tf_sparse_attention.patterns.selection import SelectedKeys, Selection, TokenInfo
from tf_sparse_attention.types import Size, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class ImageBlocks(Pattern):
    """The query's block of an image and the blocks around it, in O(T s) with s pixels in these blocks.

    Source: Parmar et al. 2018 (Image Transformer), section 3.3.

    Args:
        width: pixels per row of the image.
        block_shape: pair (h, w), rows and columns per block. Default (8, 8).
        before: pair, number of blocks above and to the left. Default (1, 1).
        after: pair, number of blocks below (0 in a causal call) and to the right. Default (1, 1).
        order: "raster", row by row, or "blocks", block by block. Default "raster".
        height: rows of the image. None: as many as the sequence fills.
        num_first: number of tokens before the first pixel. These tokens attend to all keys. Pixels attend to these
            tokens only in a union, `First(k) | ImageBlocks(width, num_first=k)`. Default 0.

    Raises:
        ValueError: if an argument is invalid, or if a static length exceeds the number of pixels plus first tokens.
    """

    width: int
    block_shape: tuple[int, int] = (8, 8)
    before: tuple[int, int] = (1, 1)
    after: tuple[int, int] = (1, 1)
    order: str = "raster"
    height: int | None = None
    num_first: int = 0

    def __post_init__(self) -> None:
        checks.check_count("width", self.width)
        checks.check_choice("order", self.order, ORDERS)
        checks.check_optional_count("height", self.height)
        checks.check_count("num_first", self.num_first, minimum=0)
        for name, minimum in (("block_shape", 1), ("before", 0), ("after", 0)):
            object.__setattr__(self, name, checks.checked_pair(name, getattr(self, name), minimum))

    @property
    def image(self) -> Image:
        """The image geometry, an `ops.image_positions.Image`.

        After `num_first` tokens, the sequence holds the first pixels of this image.
        """
        return Image(self.width, self.block_shape, self.order, self.height)

    def check_length(self, name: str, length: Size) -> None:
        """Raise a `ValueError` if a static length exceeds the number of pixels plus first tokens."""
        max_length = None if self.height is None else self.num_first + self.height * self.width
        if max_length is not None and isinstance(length, int) and length > max_length:
            raise ValueError(
                f"`{name}` must have at most {max_length} positions, the size of the image. "
                f"Received: {length} positions, {self}."
            )

    @property
    def farthest_pixels(self) -> tuple[int, int]:
        """The largest distances in rows and in columns to a visible pixel."""
        sizes = self.image.block_height, self.image.block_width
        num_blocks = [max(blocks) for blocks in zip(self.before, self.after, strict=True)]
        rows, columns = ((blocks + 1) * size - 1 for blocks, size in zip(num_blocks, sizes, strict=True))
        return rows, min(columns, self.width - 1)

    @property
    def reach(self) -> int:
        return max(self._max_distance(*blocks) for blocks in (self.before, self.after))

    def _max_distance(self, rows: int, columns: int) -> int:
        """Return the largest distance to a key on a side with `rows` and `columns` of blocks."""
        height, width = self.image.block_height, self.image.block_width
        row_width = min((columns + 1) * width, self.width)  # pixels
        if self.order == "raster":
            return ((rows + 1) * height - 1) * self.width + row_width - 1
        return rows * self.image.band_size + row_width * height - 1

    def visible(self, query: TokenInfo, key: TokenInfo) -> Tensor:
        pixels = query.position - self.num_first, key.position - self.num_first
        near = nearby_block_mask(*pixels, self.image, self.before, self.after)
        return (pixels[0] < 0) | ((pixels[1] >= 0) & near) if self.num_first else near

    def arrange(self, call: Call, selection: Selection | None = None) -> Arrangement:
        self.check_length("query", call.query_length)
        self.check_length("value", call.key_length - call.lead)
        options = self.image, self.before, self.after, call.causal
        if not self.num_first:
            return image_grid(call.query_length, call.key_length, *options)
        first = FirstQueries(self.num_first, call.query_length, call.key_length)
        num_queries, num_keys = (n - min_size(n, self.num_first) for n in (call.query_length, call.key_length))
        if is_known_zero(num_queries):
            return first
        pixels = image_grid(num_queries, num_keys, *options)
        return QueryRuns([first, ShiftedArrangement(self.num_first, pixels, call.key_length)])

    def cache(self) -> CachePolicy:
        return PixelRing(self._max_distance(*self.before) + 1, self)

    def cross_cache(self) -> CrossCachePolicy:
        return WholeImage(self)


@dataclasses.dataclass(frozen=True)
class PixelRing(Ring):
    """Ring buffer of the last `size` pixels, with a check of the image size."""

    pattern: ImageBlocks

    def num_slots(self, max_length: Size) -> Size:
        self.pattern.check_length("max_length", max_length)
        return super().num_slots(max_length)


@dataclasses.dataclass(frozen=True)
class WholeImage(WholeSequence):
    """All keys, with a check of the image size."""

    pattern: ImageBlocks

    def entry(self, key: Tensor, value: Tensor, mask: Tensor | None, groups: SelectedKeys | None) -> dict[str, Tensor]:
        self.pattern.check_length("value", shape(key)[2])
        return super().entry(key, value, mask, groups)


class FirstQueries(QuerySubset):
    """The first `count` tokens of a sequence as queries with all keys, as one group."""

    def __init__(self, count: int, query_length: Size, key_length: Size) -> None:
        self.query_length, self.key_length = min_size(query_length, count), key_length

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return super().queries(slice_axis(x, axis, 0, self.query_length), axis)


class ShiftedArrangement(Arrangement):
    """An arrangement of the queries and keys after the first `count` tokens."""

    def __init__(self, count: int, arrangement: Arrangement, key_length: Size) -> None:
        self._count, self._rest = count, arrangement
        self.key_length, self.is_exact = key_length, arrangement.is_exact

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.queries(self._after_first(x, axis), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.keys(self._after_first(x, axis), axis)

    def _after_first(self, x, axis):
        length = shape(x)[axis]
        return slice_axis(x, axis, min_size(length, self._count), length)

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._rest.restore(x, axis)

    def query_positions(self) -> Tensor:
        return self._rest.query_positions() + self._count

    def key_positions(self) -> Tensor:
        return self._rest.key_positions() + self._count

    def key_exists(self) -> Tensor | None:
        return self._rest.key_exists()

    def causal_mask(self) -> Tensor:
        return self._rest.causal_mask()

    def causal_order(self) -> tuple[Tensor, Tensor]:
        return self._rest.causal_order()

    def self_mask(self) -> Tensor:
        return self._rest.self_mask()

    def distances(self) -> Distances:
        return self._rest.distances()._replace(pairs=self.pairs)


def replace_axes(x: Tensor, axis: int, count: int, sizes: Sequence[Size]) -> Tensor:
    """Replace the `count` axes that end at the negative `axis` by axes of `sizes`."""
    old = shape(x)
    end = len(old) + axis + 1
    return ops.reshape(x, old[: end - count] + tuple(sizes) + old[end:])


def to_blocks(x: Tensor, axis: int, image: Image, num_bands: Size) -> Tensor:
    """Split a sequence of pixels into the blocks of its image by reshapes, transposes and slices.

    Args:
        x: tensor (..., T, ...).
        axis: the axis of length T, negative.
        image: an `Image`.
        num_bands: R, rows of blocks to return; an integer if the last band of the image is cut off.

    Returns:
        Tensor (..., R, C, t, ...) with the slots of a block row by row, zeros outside the image or the sequence.
    """
    if image.order == "raster":
        x = split(x, image.width, axis, num_bands * image.block_height)
        x = split(x, image.block_width, axis, image.num_columns)  # (..., rows, C, w, ...)
        x = replace_axes(x, axis, 3, (num_bands, image.block_height, image.num_columns, image.block_width))
        return replace_axes(ops.swapaxes(x, axis - 2, axis - 1), axis, 2, (image.block_size,))
    whole = _num_full_bands(image, num_bands)
    blocks = _split_bands(split(x, image.band_size, axis, whole), axis, image, image.block_height)
    if image.height is None or not image.cut_height or num_bands == whole:
        return blocks
    x = split(x, image.height * image.width, axis, 1)  # a known length, unlike the sequence
    rest = slice_axis(x, axis, whole * image.band_size, image.height * image.width)
    rest = _split_bands(rest, axis, image, image.cut_height)
    return ops.concatenate([blocks, pad_axis(rest, axis - 2, 0, num_bands - whole - 1)], axis - 2)


def from_blocks(x: Tensor, axis: int, image: Image, length: Size) -> Tensor:
    """Undo `to_blocks`: (..., R, C, t, ...) with t at the negative `axis` to (..., length, ...)."""
    num_bands = shape(x)[axis - 2]
    if image.order == "raster":
        x = ops.swapaxes(replace_axes(x, axis, 1, (image.block_height, image.block_width)), axis - 2, axis - 1)
        x = replace_axes(x, axis, 2, (image.num_columns * image.block_width,))
        x = slice_axis(x, axis, 0, image.width)
        return slice_axis(replace_axes(x, axis, 3, (num_bands * image.band_size,)), axis, 0, length)
    whole = _num_full_bands(image, num_bands)
    pixels = _join_bands(slice_axis(x, axis - 2, 0, whole), axis, image, image.block_height)
    if image.cut_height and num_bands > whole:
        rest = slice_axis(x, axis - 2, whole, whole + 1)
        pixels = ops.concatenate([pixels, _join_bands(rest, axis, image, image.cut_height)], axis)
    return slice_axis(pixels, axis, 0, length)


def _num_full_bands(image, num_bands):
    """Return how many bands of a sequence in the order "blocks" are not cut off."""
    return min(num_bands, image.height // image.block_height) if image.cut_height else num_bands


def _split_bands(x, axis, image, rows):
    """Split bands of `rows` rows of pixels in the order "blocks": (..., rows W, ...) to (..., C, t, ...)."""
    width = image.block_width
    num_whole, columns = divmod(image.width, width)
    end = num_whole * width * rows
    blocks = replace_axes(slice_axis(x, axis, 0, end), axis, 1, (num_whole, rows, width))
    if columns:
        rest = replace_axes(slice_axis(x, axis, end, image.width * rows), axis, 1, (1, rows, columns))
        blocks = ops.concatenate([blocks, pad_axis(rest, axis, 0, width - columns)], axis - 2)
    blocks = pad_axis(blocks, axis - 1, 0, image.block_height - rows)
    return replace_axes(blocks, axis, 2, (image.block_size,))


def _join_bands(x, axis, image, rows):
    """Undo `_split_bands` and join the bands: (..., R, C, t, ...) to (..., R rows W, ...)."""
    num_bands, width = shape(x)[axis - 2], image.block_width
    num_whole, columns = divmod(image.width, width)
    x = slice_axis(replace_axes(x, axis, 1, (image.block_height, width)), axis - 1, 0, rows)
    pixels = replace_axes(slice_axis(x, axis - 2, 0, num_whole), axis, 3, (num_whole * rows * width,))
    if columns:
        rest = slice_axis(slice_axis(x, axis - 2, num_whole, num_whole + 1), axis, 0, columns)
        pixels = ops.concatenate([pixels, replace_axes(rest, axis, 3, (rows * columns,))], axis)
    return replace_axes(pixels, axis, 2, (num_bands * rows * image.width,))


@dataclasses.dataclass(frozen=True)
class ImageGrid(Arrangement):
    """Blocks of an image, each with the blocks around it, as in `Grid` for sequences.

    Group g is the block (g // C, g % C). Cost: O(T s) with s slots in the neighbors.

    Args:
        query_length: T, an integer or a scalar tensor.
        key_length: S, an integer or a scalar tensor.
        image: the `Image` whose first pixels are the queries and the keys.
        neighbors: relative positions of the key blocks, pairs of (bands down, columns to the right).

    Example:
        >>> image = Image(width=4, block_shape=(1, 2))
        >>> ImageGrid(query_length=7, key_length=7, image=image, neighbors=((-1, 0), (0, 0))).key_positions().numpy()
        array([[-1, -1,  0,  1],
               [-1, -1,  2,  3],
               [ 0,  1,  4,  5],
               [ 2,  3,  6, -1]], dtype=int32)
    """

    query_length: Size
    key_length: Size
    image: Image
    neighbors: tuple[tuple[int, int], ...]

    is_exact = True

    @property
    def num_bands(self) -> Size:
        """R, the rows of blocks that hold queries."""
        height = self.image.height
        if height is not None and self.image.cut_height and not isinstance(self.query_length, int):
            return -(-height // self.image.block_height)  # the number of slices must be known
        return (self.query_length + self.image.band_size - 1) // self.image.band_size

    def queries(self, x: Tensor, axis: int = -2) -> Tensor:
        return self._groups(to_blocks(x, axis, self.image, self.num_bands), axis)

    def keys(self, x: Tensor, axis: int = -2) -> Tensor:
        num_bands, num_columns = self.num_bands, self.image.num_columns
        above, left = (-min(0, *steps) for steps in zip(*self.neighbors, (0, 0), strict=True))
        below, right = (max(0, *steps) for steps in zip(*self.neighbors, (0, 0), strict=True))
        x = to_blocks(x, axis, self.image, num_bands + below)
        x = pad_axis(pad_axis(x, axis - 2, above, 0), axis - 1, left, right)
        bands = {down: slice_axis(x, axis - 2, above + down, above + down + num_bands) for down, _ in self.neighbors}
        beside = [
            slice_axis(bands[down], axis - 1, left + along, left + along + num_columns)
            for down, along in self.neighbors
        ]
        return self._groups(ops.concatenate(beside, axis) if len(beside) > 1 else beside[0], axis)

    def _groups(self, x, axis):
        return replace_axes(x, axis - 1, 2, (self.num_bands * self.image.num_columns,))

    def key_positions(self) -> Tensor:
        """Return the position of each key slot, int32 (G, s): -1 outside the image or the sequence."""
        return self.keys(ops.arange(1, self.key_length + 1, dtype="int32"), -1) - 1

    def query_positions(self) -> Tensor:
        """Return the position of each query slot, int32 (G, t): -1 outside the image or the sequence."""
        return self.queries(ops.arange(1, self.query_length + 1, dtype="int32"), -1) - 1

    def key_exists(self) -> Tensor:
        return (self.key_positions() >= 0)[:, None, :]

    def restore(self, x: Tensor, axis: int = -2) -> Tensor:
        blocks = replace_axes(x, axis - 1, 1, (self.num_bands, self.image.num_columns))
        return from_blocks(blocks, axis, self.image, self.query_length)

    def distances(self) -> Distances:
        shape = self.image.block_height, self.image.block_width
        return super().distances()._replace(image_blocks=(shape, self.neighbors))

    def causal_mask(self) -> np.ndarray:
        """Return which keys are not after the query, bool (t, s), the same for every block.

        Both orders compare pixels lexicographically, by (row, column) or by (band, column of blocks, row, column).
        Differences depend only on the slots and on the relative position of the blocks.
        """
        height, width = self.image.block_height, self.image.block_width
        row, column = (x.reshape(-1, 1) for x in np.mgrid[:height, :width])
        down, along = np.repeat(np.array(self.neighbors), height * width, axis=0).T
        rows, columns = (np.tile(x.ravel(), len(self.neighbors)) - x for x in (row, column))  # key minus query
        keys: tuple[np.ndarray, ...]
        if self.image.order == "raster":
            keys = (rows + down * height, columns + along * width)
        else:
            keys = (down, along, rows, columns)
        after = np.zeros(rows.shape, bool)
        for difference in reversed(keys):
            after = (difference > 0) | ((difference == 0) & after)
        return ~after


def image_grid(
    query_length: Size,
    key_length: Size,
    image: Image,
    num_blocks_before: tuple[int, int],
    num_blocks_after: tuple[int, int],
    causal: bool,
) -> ImageGrid:
    """Create the `ImageGrid` of local blocks, without neighbors outside the image.

    Numbers of blocks are pairs (above or below, left or right).
    """
    num_bands = None if image.height is None else -(-image.height // image.block_height)
    if are_known(query_length, key_length):
        num_rows = -(-max(query_length, key_length) // image.width)
        if image.order == "raster":  # the order "blocks" depends on the block height
            block_height = min(image.block_height, num_rows)
            image = dataclasses.replace(image, block_shape=(block_height, image.block_width))
        num_bands = -(-num_rows // image.block_height)
    above, below = num_blocks_before[0], 0 if causal else num_blocks_after[0]
    if num_bands is not None:
        above, below = min(above, num_bands - 1), min(below, num_bands - 1)
    left, right = (min(blocks[1], image.num_columns - 1) for blocks in (num_blocks_before, num_blocks_after))
    neighbors = [(down, along) for down in range(-above, below + 1) for along in range(-left, right + 1)]
    if causal and image.order == "blocks":  # a block precedes the blocks to its right
        neighbors = [step for step in neighbors if step <= (0, 0)]
    return ImageGrid(query_length, key_length, image, tuple(neighbors))
