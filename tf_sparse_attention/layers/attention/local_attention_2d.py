"""Two-dimensional local attention as a Keras layer."""

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
    """Multi-head attention of each pixel over its block of an image and the blocks around it, in O(T s).

    The sequence holds the pixels of an image of `width` columns, from its first one on, and may end anywhere. A pixel i
    in the block (R, C) of h x w pixels sees the pixels j of the blocks R - before .. R + after, C - before .. C +
    after, each with the numbers of its dimension, and in a causal call those of them with j <= i, positions in the
    sequence. That is s = (rows of blocks) (columns of blocks) h w keys, 9 blocks of 64 by default, 6 in a causal call
    (5 in the order "blocks"), however large the image is. Softmax of q . k / sqrt(key_dim), as in
    `keras.layers.MultiHeadAttention`.

    Two orders: "blocks" is block by block, row by row inside each; a causal call sees whole blocks before its own and
    its own up to itself, as Parmar et al. 2018 (Image Transformer, section 3.3) and the published code of Roy et al.
    2021 have it. "raster" is row by row, the order of pixels in a file; a causal call sees of its own block and of
    those to the left and right the rows above, and of its row what comes before. Whatever makes the sequence has to
    know the order.

    Note: differs from Parmar et al. in that what is seen around a block is whole blocks.

    A block at an edge that the block's shape does not divide holds the pixels that are left. Queries and values of
    different lengths are parts of images of the same width. A query with nothing to attend to gets zeros. Evaluation
    and training differ in dropout alone.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        width: W, pixels in a row of the image.
        height: rows of the image, of which a sequence may hold the first. Needed in the order "blocks" where h does not
            divide it, since the blocks of the last row are lower then. None: as many as there are, multiples of h in
            the order "blocks".
        block_shape: (h, w), rows and columns of a block. Default (8, 8).
        num_blocks_before: pair, the blocks seen above and to the left of the own one. None: (1, 1).
        num_blocks_after: pair, the blocks seen below, which are none in a causal call, and to the right. None: as many
            as before.
        order: "raster" or "blocks". Default "raster".
        num_class_tokens: tokens before the first pixel that see the whole sequence and are seen by all of it, such as
            one for the class of the image; in a causal call they see what comes before. Default 0.
        position: None, "rotary_2d" (Heo et al. 2024: half of the channels turn by the row, half by the column;
            `key_dim` a multiple of 4), "relative_2d" (Bello et al. 2019: vectors for distances in rows and in columns,
            clipped at `max_distance`, by default the farthest key, on the scores alone), or "relative", "rotary",
            "alibi", whose distances are those in the sequence: a row up is `width` away in the order "raster", and
            O(T max_distance) is the cost of "relative". Class tokens have no place in the two dimensions.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: for a wrong argument, and for a length that is known to be more than `height` rows have.

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
        self.num_blocks_before = num_blocks_before
        self.num_blocks_after = num_blocks_after
        if num_blocks_before is not None:
            self.num_blocks_before = checks.checked_pair("num_blocks_before", num_blocks_before, minimum=0)
        if num_blocks_after is not None:
            self.num_blocks_after = checks.checked_pair("num_blocks_after", num_blocks_after, minimum=0)
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
        """The `Image` that sequences are the first pixels of."""
        return self._blocks.image

    def get_config(self) -> Config:
        names = ("width", "height", "block_shape", "num_blocks_before", "num_blocks_after", "order", "num_class_tokens")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
