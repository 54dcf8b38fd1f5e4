"""Positions of the pixels of an image, by row and column: rotary and relative ones."""

import dataclasses
import functools

import keras
from keras import ops

from tf_sparse_attention.ops.attend import score_dtype
from tf_sparse_attention.ops.blocks import matmul_last_axis, shape
from tf_sparse_attention.ops.positions import Distances, NoPosition, Rotary, skew
from tf_sparse_attention.ops.rotary import PLAIN, RotarySettings
from tf_sparse_attention.types import Tensor

ORDERS = ("raster", "blocks")


@dataclasses.dataclass(frozen=True)
class Image:
    """How a sequence goes over the pixels of an image that is cut into blocks.

    "raster": row by row. "blocks": block by block, these row by row, and row by row inside a block. A block at the
    right or lower edge holds the pixels that are left. A sequence may end anywhere.

    Args:
        width: W, pixels in a row.
        block_shape: (h, w), rows and columns of a block.
        order: "raster" or "blocks".
        height: rows of the image, or None for as many as the sequence fills. It matters in the order "blocks" where h
            does not divide it, since the pixels of its last, lower blocks come in another order.

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
        """h, no more than the image has rows."""
        return self.block_shape[0] if self.height is None else min(self.block_shape[0], self.height)

    @property
    def block_width(self) -> int:
        """w, no more than the image has columns."""
        return min(self.block_shape[1], self.width)

    @property
    def block_size(self) -> int:
        """t, the places of a block."""
        return self.block_height * self.block_width

    @property
    def band_size(self) -> int:
        """Pixels of a band, a row of whole blocks."""
        return self.block_height * self.width

    @property
    def num_columns(self) -> int:
        """C, the blocks beside each other."""
        return -(-self.width // self.block_width)

    @property
    def cut_height(self) -> int:
        """Rows of pixels of the last band if its blocks are cut off and the order shows it, else 0."""
        return 0 if self.height is None or self.order == "raster" else self.height % self.block_height

    def coordinates(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the row and the column of the pixel at each of some positions, int tensors like them."""
        if self.order == "raster":
            return positions // self.width, positions % self.width
        band, place = positions // self.band_size, positions % self.band_size
        rows = self.block_height
        if self.height is not None and self.cut_height:
            is_cut = band == self.height // self.block_height
            rows = ops.where(is_cut, self.cut_height, rows)
        column = place // (rows * self.block_width)
        place = place - column * rows * self.block_width
        columns = ops.minimum(self.block_width, self.width - column * self.block_width)
        return band * self.block_height + place // columns, column * self.block_width + place % columns


def nearby_block_mask(
    queries: Tensor, keys: Tensor, image: Image, num_blocks_before: tuple[int, int], num_blocks_after: tuple[int, int]
) -> Tensor:
    """Returns where a key is in one of the blocks around that of a query, bool (..., T, S).

    Args:
        queries: int (..., T, 1), positions of queries.
        keys: int (..., 1, S), positions of keys.
        image: the `Image` that both are pixels of.
        num_blocks_before: the blocks seen above and to the left.
        num_blocks_after: the blocks seen below and to the right.
    """
    of_queries, of_keys = image.coordinates(queries), image.coordinates(keys)
    near = []
    for axis, size in enumerate((image.block_height, image.block_width)):
        ahead = of_keys[axis] // size - of_queries[axis] // size
        near += [ahead >= -num_blocks_before[axis], ahead <= num_blocks_after[axis]]
    return functools.reduce(ops.logical_and, near)


@dataclasses.dataclass(frozen=True)
class Rotary2D(NoPosition):
    """Rotary embedding by axes (Heo et al. 2024, section 3): half of the channels turn by the row, half by the column.

    Tokens before the first pixel are not turned. H must be a multiple of 4.

    Args:
        image: the `Image` of the pixels.
        num_first: tokens before the first pixel.
        settings: of each half, as in `Rotary`.
    """

    image: Image
    num_first: int = 0
    settings: RotarySettings = PLAIN

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        row, column = self.image.coordinates(ops.maximum(positions - self.num_first, 0))
        turn = Rotary(self.settings)
        first, second = ops.split(x, 2, axis=-1)
        return ops.concatenate([turn.rotate(first, row), turn.rotate(second, column)], axis=-1)


@dataclasses.dataclass(frozen=True)
class Relative2D(NoPosition):
    """Learned vectors for the clipped distances in rows and in columns (Bello et al. 2019, section 3.1).

    score_ts += q_t . (row_table[clip(r, -M, M) + M] + column_table[clip(c, -M', M') + M']) with r and c the row and the
    column of the key minus those of the query; nothing to and from tokens before the first pixel. All heads share the
    tables.

    Args:
        image: the `Image` of the pixels.
        row_table: tensor (2 M + 1, H).
        column_table: tensor (2 M' + 1, H).
        num_first: tokens before the first pixel.
    """

    image: Image
    row_table: Tensor
    column_table: Tensor
    num_first: int = 0

    has_bias = True

    def score_bias(self, query: Tensor, distances: Distances) -> Tensor:
        query = ops.cast(query, score_dtype(keras.backend.standardize_dtype(query.dtype)))
        if distances.image_blocks is not None:
            return self._of_blocks(query, *distances.image_blocks)
        queries, keys = (at - self.num_first for at in distances.pairs())  # type: ignore[misc]  # all but content has it
        ahead = [
            key - own
            for own, key in zip(*(self.image.coordinates(ops.maximum(x, 0)) for x in (queries, keys)), strict=True)
        ]
        bias = sum(self._picked(query, table, step) for table, step in zip(self._tables(), ahead, strict=True))
        return ops.where(ops.logical_and(queries >= 0, keys >= 0), bias, 0)

    def _tables(self):
        return self.row_table, self.column_table

    def _picked(self, query, table, ahead):
        """Returns query times table at some distances: (B, N, G, t, s) of distances that broadcast against it."""
        by_distance = matmul_last_axis(query, ops.transpose(ops.cast(table, query.dtype)))
        index = _row(table, ahead)
        index = ops.broadcast_to(index, shape(by_distance)[:-1] + (shape(index)[-1],))
        return ops.take_along_axis(by_distance, index, axis=-1)

    def _of_blocks(self, query, block, neighbors):
        """Returns the bias of blocks beside blocks, (B, N, G, h w, s), without a gather."""
        down, along = zip(*neighbors, strict=True)
        sizes = shape(query)
        query = ops.reshape(query, (*sizes[:3], *block, sizes[-1]))
        rows = self._skewed(ops.swapaxes(query, 3, 4), self.row_table, block[0], down)  # (..., w, h, keys' rows)
        rows, columns = ops.swapaxes(rows, 3, 4), self._skewed(query, self.column_table, block[1], along)
        parts = [
            rows[..., :, None][..., (y - min(down)) * block[0] : (y - min(down) + 1) * block[0], :]
            + columns[..., None, (x - min(along)) * block[1] : (x - min(along) + 1) * block[1]]
            for y, x in neighbors
        ]
        return ops.concatenate([ops.reshape(part, (*sizes[:4], block[0] * block[1])) for part in parts], axis=-1)

    def _skewed(self, query, table, size, steps):
        """Returns query (..., t, H) times the rows of a table for each key along an axis, (..., t, keys)."""
        num_keys = (max(steps) - min(steps) + 1) * size
        lowest = min(steps) * size - (size - 1)
        index = _row(table, ops.arange(lowest, lowest + size + num_keys - 1, dtype="int32"))
        vectors = ops.take(ops.cast(table, query.dtype), index, axis=0)
        return skew(matmul_last_axis(query, ops.transpose(vectors)), (size, num_keys))


def _row(table, ahead):
    """Returns the row of a table for distances along an axis."""
    reach = (table.shape[0] - 1) // 2
    return ops.clip(ahead, -reach, reach) + reach
