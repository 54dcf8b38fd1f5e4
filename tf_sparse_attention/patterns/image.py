"""Blocks of an image."""

import dataclasses

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.ops.images import ORDERS, Image, near_pixels
from tf_sparse_attention.ops.local_2d import ImageGrid, image_grid
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

    Raises:
        ValueError: for a wrong argument, and for calls of more positions than the image has.
    """

    width: int
    block_shape: tuple[int, int] = (8, 8)
    before: tuple[int, int] = (1, 1)
    after: tuple[int, int] = (1, 1)
    order: str = "raster"
    height: int | None = None

    def __post_init__(self) -> None:
        checks.check_count("width", self.width)
        checks.check_choice("order", self.order, ORDERS)
        checks.check_optional_count("height", self.height)
        for name, minimum in (("block_shape", 1), ("before", 0), ("after", 0)):
            object.__setattr__(self, name, checks.checked_pair(name, getattr(self, name), minimum))

    @property
    def image(self) -> Image:
        """The `Image` that sequences are the first pixels of."""
        return Image(self.width, self.block_shape, self.order, self.height)

    @property
    def max_length(self) -> int | None:
        return None if self.height is None else self.height * self.width

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
        return near_pixels(query.position, key.position, self.image, self.before, self.after)

    def arrange(self, call: Call, known: Known = None) -> ImageGrid:
        return image_grid(call.query_length, call.key_length, self.image, self.before, self.after, call.causal)

    def cache(self) -> Ring:
        return Ring(self._farthest(*self.before) + 1)
