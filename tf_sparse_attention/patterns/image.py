"""Blocks of an image."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.ops.arrangement import AfterFirst, Arrangement, FirstRows
from tf_sparse_attention.ops.blocks import is_known_zero, min_size
from tf_sparse_attention.ops.image_positions import ORDERS, Image, nearby_block_mask
from tf_sparse_attention.ops.local_2d import image_grid
from tf_sparse_attention.patterns.caches import Ring
from tf_sparse_attention.patterns.call import Call, Known
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.place import Place
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
@dataclasses.dataclass(frozen=True)
class ImageBlocks(Pattern):
    """The query's own block of an image and the blocks around it, in O(T s) with s the pixels of these blocks.

    Source: Parmar et al. 2018 (Image Transformer), section 3.3.

    Args:
        width: pixels in a row of the image.
        block_shape: pair (h, w), rows and columns of a block. Default (8, 8).
        before: pair, the blocks seen above and to the left. Default (1, 1).
        after: pair, the blocks seen below, none in a causal call, and to the right. Default (1, 1).
        order: "raster", row by row, or "blocks", block by block. Default "raster".
        height: rows of the image; None: as many as the sequence fills.
        num_first: tokens before the first pixel, which see all keys; what shows them to the pixels is another pattern:
            `First(k) | ImageBlocks(width, num_first=k)`. Default 0.

    Raises:
        ValueError: for a wrong argument, and for calls known to have more positions than the image.
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
        """The `Image` that sequences are the first pixels of."""
        return Image(self.width, self.block_shape, self.order, self.height)

    @property
    def max_length(self) -> int | None:
        return None if self.height is None else self.num_first + self.height * self.width

    @property
    def farthest_pixels(self) -> tuple[int, int]:
        """The largest distances in rows and in columns of a pixel that is seen."""
        sizes = self.image.block_height, self.image.block_width
        around = [max(blocks) for blocks in zip(self.before, self.after, strict=True)]
        rows, columns = ((blocks + 1) * size - 1 for blocks, size in zip(around, sizes, strict=True))
        return rows, min(columns, self.width - 1)

    @property
    def reach(self) -> int:
        return max(self._farthest(*blocks) for blocks in (self.before, self.after))

    def _farthest(self, rows: int, columns: int) -> int:
        """Returns the distance of the farthest key on a side where so many blocks are seen."""
        height, width = self.image.block_height, self.image.block_width
        along = min((columns + 1) * width, self.width)  # pixels of a row from end to end of what is seen
        if self.order == "raster":
            return ((rows + 1) * height - 1) * self.width + along - 1
        return rows * self.image.band_size + along * height - 1

    def visible(self, query: Place, key: Place) -> Tensor:
        pixels = query.position - self.num_first, key.position - self.num_first
        near = nearby_block_mask(*pixels, self.image, self.before, self.after)
        return (pixels[0] < 0) | ((pixels[1] >= 0) & near) if self.num_first else near

    def arrange(self, call: Call, known: Known = None) -> Arrangement | list[Arrangement]:
        around = self.image, self.before, self.after, call.causal
        if not self.num_first:
            return image_grid(call.query_length, call.key_length, *around)
        first = FirstRows(self.num_first, call.query_length, call.key_length)
        num_queries, num_keys = (n - min_size(n, self.num_first) for n in (call.query_length, call.key_length))
        if is_known_zero(num_queries):
            return first
        return [first, AfterFirst(self.num_first, image_grid(num_queries, num_keys, *around), call.key_length)]

    def cache(self) -> Ring:
        return Ring(self._farthest(*self.before) + 1)
