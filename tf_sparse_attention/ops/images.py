"""Images as sequences of pixels: two orders, where a position lies in them, and which blocks are near."""

import dataclasses
import functools

from keras import ops

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


def near_pixels(
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
