"""Two-dimensional local attention for images."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.ops.image_positions import ORDERS, Image, Relative2D, Rotary2D
from tf_sparse_attention.ops.positions import NoPosition
from tf_sparse_attention.patterns.first import First
from tf_sparse_attention.patterns.image import ImageBlocks
from tf_sparse_attention.types import Config, Shape


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LocalAttention2D(AttentionLayer):
    """Two-dimensional local attention: each pixel attends to s keys in its block and the surrounding blocks, in O(T s).

    The pattern is `tsa.patterns.ImageBlocks`. The layer adds two-dimensional position encodings. The sequence is an
    image with `width` columns, or a prefix of its pixels. Pixel i in block (R, C) of h x w pixels attends to the blocks
    R - before .. R + after, C - before .. C + after. Under a causal mask, pixel i attends only to the pixels j <= i of
    these blocks. Each query has at most s = (number of blocks) * h * w keys, for any image size. By default the
    neighborhood is 9 blocks of 64 pixels, or 6 under a causal mask (5 with order="blocks"). The softmax is over
    q . k / sqrt(key_dim), as in `keras.layers.MultiHeadAttention`.

    The pixels of the input must be in the given `order`:

    - "raster": row by row, the order of image files. Under a causal mask, a query attends to the earlier pixels of its
      row and to the rows above it, within its block and the surrounding blocks.
    - "blocks": block by block, and row by row within a block. Under a causal mask, a query attends to whole earlier
      blocks, and to its own block up to its position. This is the order of Parmar et al. 2018 (Image Transformer,
      section 3.3) and of the published code of Roy et al. 2021.

    Note: differs from Parmar et al. in that the neighborhood consists of whole blocks.

    Blocks at the edge may be incomplete. Queries and values may have different lengths, but their images must have the
    same width. If all keys of a query are masked, its attention output is zero. Training differs from evaluation only
    in dropout.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        width: W, pixels per row of the image.
        height: rows of the image. The sequence may be shorter. Required with order="blocks" if the height is not a
            multiple of h. None: any height. With order="blocks", the height must then be a multiple of h.
        block_shape: (h, w), rows and columns of a block. Default (8, 8).
        num_blocks_before: pair, the number of blocks above and to the left. None: (1, 1).
        num_blocks_after: pair, the number of blocks below (ignored under a causal mask) and to the right. None:
            `num_blocks_before`.
        order: "raster" or "blocks". Default "raster".
        num_class_tokens: number of class tokens before the first pixel. Class tokens attend to all tokens, and all
            tokens attend to class tokens. Under a causal mask, keys after the query are masked. Default 0.
        position: position encoding. Class tokens have no two-dimensional position.
            "rotary_2d" (Heo et al. 2024): half of the channels are rotated by row, half by column. `key_dim` must be a
            multiple of 4.
            "relative_2d" (Bello et al. 2019): learned vectors for distances in rows and in columns, added only to the
            scores. Distances are clipped at `max_distance`, by default the distance of the farthest key.
            "relative", "rotary" and "alibi": distances in the sequence. In raster order, the pixel above has distance
            `width`. "relative" costs O(T max_distance).
            None: no position encoding.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: if an argument is invalid, or if a sequence is longer than `height` rows.

    Example:
        >>> x = keras.random.normal((2, 32 * 32, 64))
        >>> layer = LocalAttention2D(num_heads=4, key_dim=16, width=32)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1024, 64)
    """

    position_kinds = (*AttentionLayer.position_kinds, "relative_2d", "rotary_2d")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        width: int,
        height: int | None = None,
        block_shape: tuple[int, int] = (8, 8),
        num_blocks_before: tuple[int, int] | None = None,
        num_blocks_after: tuple[int, int] | None = None,
        order: str = "raster",
        num_class_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("width", width)
        checks.check_optional_count("height", height)
        checks.check_choice("order", order, ORDERS)
        checks.check_count("num_class_tokens", num_class_tokens, minimum=0)
        self.width = width
        self.height = height
        self.block_shape = checks.checked_pair("block_shape", block_shape)
        self.num_blocks_before, self.num_blocks_after = (
            None if pair is None else checks.checked_pair(name, pair, minimum=0)
            for name, pair in (("num_blocks_before", num_blocks_before), ("num_blocks_after", num_blocks_after))
        )
        self.order = order
        self.num_class_tokens = num_class_tokens
        before = self.num_blocks_before or (1, 1)
        around = before, self.num_blocks_after or before
        self._blocks = ImageBlocks(width, self.block_shape, *around, order, height, num_first=num_class_tokens)
        self._pattern = self._blocks if not num_class_tokens else First(num_class_tokens, False) | self._blocks

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
        segment_ids_shape: Shape | None = None,
    ) -> None:
        super().build(query_shape, value_shape, key_shape)
        if self.position == "relative_2d":
            farthest = self._blocks.farthest_pixels
            self._relative_row, self._relative_column = (
                projections.relative_table(self, name, 2 * (self.max_distance or max(reach, 1)) + 1, self._objects)
                for name, reach in zip(("relative_row", "relative_column"), farthest, strict=True)
            )

    @property
    def position_encoding(self) -> NoPosition:
        if self.position == "rotary_2d":
            return Rotary2D(self.image, self.num_class_tokens)
        if self.position == "relative_2d":
            return Relative2D(self.image, self._relative_row, self._relative_column, self.num_class_tokens)
        return super().position_encoding

    @property
    def image(self) -> Image:
        """The geometry of the image."""
        return self._blocks.image

    def get_config(self) -> Config:
        names = ("width", "height", "block_shape", "num_blocks_before", "num_blocks_after", "order", "num_class_tokens")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
