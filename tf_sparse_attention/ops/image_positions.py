"""Images as sequences of pixels: pixel order, block neighborhoods, and 2D rotary and relative positions."""

import dataclasses
import functools

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.positions import PLAIN, Distances, NoPosition, Rotary, RotarySettings, skew
from tf_sparse_attention.ops.shapes import matmul_last_axis, shape
from tf_sparse_attention.types import Tensor

ORDERS = ("raster", "blocks")


@dataclasses.dataclass(frozen=True)
class Image:
    """Order of the pixels of an image in a sequence, and a partition into blocks.

    "raster" is row by row. "blocks" is block by block in raster order, and row by row within a block. Blocks at the
    right and lower edges are cut off. A sequence may end at any pixel.

    Args:
        width: W, pixels per row.
        block_shape: (h, w), rows and columns per block.
        order: "raster" or "blocks".
        height: rows of the image. None: as many as the sequence fills. With order "blocks" it affects the order of
            pixels in the last row of blocks if h does not divide it.

    Example:
        >>> row, column = Image(width=3, block_shape=(2, 2), order="blocks").coordinates(ops.arange(6))
        >>> row.numpy().tolist(), column.numpy().tolist()
        ([0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 2, 2])
    """

    width: int
    block_shape: tuple[int, int] = (8, 8)
    order: str = "raster"
    height: int | None = None

    @property
    def block_height(self) -> int:
        """h, at most the rows of the image."""
        return self.block_shape[0] if self.height is None else min(self.block_shape[0], self.height)

    @property
    def block_width(self) -> int:
        """w, at most the columns of the image."""
        return min(self.block_shape[1], self.width)

    @property
    def block_size(self) -> int:
        """t, pixels per block."""
        return self.block_height * self.block_width

    @property
    def band_size(self) -> int:
        """Pixels per band, a row of blocks."""
        return self.block_height * self.width

    @property
    def num_columns(self) -> int:
        """C, blocks per band."""
        return -(-self.width // self.block_width)

    @property
    def cut_height(self) -> int:
        """Rows of an incomplete last band, if `height` is known and the order is "blocks"; otherwise 0."""
        return 0 if self.height is None or self.order == "raster" else self.height % self.block_height

    def coordinates(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and the column of the pixels at positions, int tensors of the same shape."""
        if self.order == "raster":
            return positions // self.width, positions % self.width
        band, index = positions // self.band_size, positions % self.band_size
        rows = self.block_height
        if self.height is not None and self.cut_height:
            is_cut = band == self.height // self.block_height
            rows = ops.where(is_cut, self.cut_height, rows)
        column = index // (rows * self.block_width)
        index = index - column * rows * self.block_width
        columns = ops.minimum(self.block_width, self.width - column * self.block_width)
        return band * self.block_height + index // columns, column * self.block_width + index % columns


def nearby_block_mask(
    queries: Tensor, keys: Tensor, image: Image, num_blocks_before: tuple[int, int], num_blocks_after: tuple[int, int]
) -> Tensor:
    """Return whether each key is in a block near the block of the query, bool (..., T, S).

    Args:
        queries: int (..., T, 1), positions of queries.
        keys: int (..., 1, S), positions of keys.
        image: the `Image` of queries and keys.
        num_blocks_before: number of visible blocks above and to the left.
        num_blocks_after: number of visible blocks below and to the right.
    """
    query_axes, key_axes = image.coordinates(queries), image.coordinates(keys)
    near = []
    for axis, size in enumerate((image.block_height, image.block_width)):
        distance = key_axes[axis] // size - query_axes[axis] // size
        near += [distance >= -num_blocks_before[axis], distance <= num_blocks_after[axis]]
    return functools.reduce(ops.logical_and, near)


@dataclasses.dataclass(frozen=True)
class Rotary2D(NoPosition):
    """Axial rotary embedding (Heo et al. 2024, section 3): rows rotate half of the channels, columns the other half.

    Tokens before the first pixel are not rotated. H must be a multiple of 4.

    Args:
        image: the `Image` of the pixels.
        num_first: number of tokens before the first pixel.
        settings: `RotarySettings`, used for both halves of the channels.
    """

    image: Image
    num_first: int = 0
    settings: RotarySettings = PLAIN

    name = "rotary_2d"

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        row, column = self.image.coordinates(ops.maximum(positions - self.num_first, 0))
        rotary = Rotary(self.settings)
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([rotary.rotate(first, row), rotary.rotate(second, column)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Relative2D(NoPosition):
    """Learned relative positions in rows and columns (Bello et al. 2019, section 3.1).

    score_ts += q_t . (row_table[clip(r, -M, M) + M] + column_table[clip(c, -M', M') + M']), where r and c are the row
    and the column of the key minus those of the query. Pairs with a token before the first pixel have no bias. All
    heads share the tables.

    Args:
        image: the `Image` of the pixels.
        row_table: tensor (2 M + 1, H).
        column_table: tensor (2 M' + 1, H).
        num_first: number of tokens before the first pixel.
    """

    image: Image
    row_table: Tensor
    column_table: Tensor
    num_first: int = 0

    name = "relative_2d"
    has_bias = True

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor:
        query = ops.cast(query, score_dtype(keras.backend.standardize_dtype(query.dtype)))
        if distances.image_blocks is not None:
            return self._block_bias(query, *distances.image_blocks)
        queries, keys = (x - self.num_first for x in distances.pairs())  # type: ignore[misc]  # always set here
        query_axes, key_axes = (self.image.coordinates(ops.maximum(x, 0)) for x in (queries, keys))
        rows, columns = key_axes[0] - query_axes[0], key_axes[1] - query_axes[1]
        bias = self._axis_bias(query, self.row_table, rows) + self._axis_bias(query, self.column_table, columns)
        return ops.where(ops.logical_and(queries >= 0, keys >= 0), bias, 0)

    def _axis_bias(self, query, table, distance):
        """Return query times table at distances that broadcast to (B, N, G, t, s)."""
        by_distance = matmul_last_axis(query, ops.transpose(ops.cast(table, query.dtype)))
        index = _table_index(table, distance)
        index = ops.broadcast_to(index, shape(by_distance)[:-1] + (shape(index)[-1],))
        return ops.take_along_axis(by_distance, index, axis=-1)

    def _block_bias(self, query, block, neighbors):
        """Return the bias between a block and its neighbor blocks, (B, N, G, h w, s), without a gather."""
        down, along = zip(*neighbors, strict=True)
        sizes = shape(query)
        query = ops.reshape(query, (*sizes[:3], *block, sizes[-1]))
        rows = self._skewed_bias(ops.swapaxes(query, 3, 4), self.row_table, block[0], down)  # (..., w, h, rows of keys)
        rows, columns = ops.swapaxes(rows, 3, 4), self._skewed_bias(query, self.column_table, block[1], along)
        parts = [
            rows[..., :, None][..., (y - min(down)) * block[0] : (y - min(down) + 1) * block[0], :]
            + columns[..., None, (x - min(along)) * block[1] : (x - min(along) + 1) * block[1]]
            for y, x in neighbors
        ]
        return ops.concatenate([ops.reshape(part, (*sizes[:4], block[0] * block[1])) for part in parts], axis=-1)

    def _skewed_bias(self, query, table, size, steps):
        """Return query (..., t, H) times the row of a table for each key along an axis, (..., t, number of keys)."""
        num_keys = (max(steps) - min(steps) + 1) * size
        lowest = min(steps) * size - (size - 1)
        index = _table_index(table, ops.arange(lowest, lowest + size + num_keys - 1, dtype="int32"))
        vectors = ops.take(ops.cast(table, query.dtype), index, axis=0)
        return skew(matmul_last_axis(query, ops.transpose(vectors)), (size, num_keys))


def _table_index(table, distance):
    """Return the row of a table for distances along an axis."""
    reach = (table.shape[0] - 1) // 2
    return ops.clip(distance, -reach, reach) + reach
