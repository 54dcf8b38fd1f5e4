"""Two-dimensional local attention as a Keras layer."""

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.decoding import at_most, attend_kept, empty_places, keep_last, keep_next, kept_last
from tf_sparse_attention.ops.images import ORDERS, Image, image_mask, near_pixels
from tf_sparse_attention.ops.local_2d import local_attention_2d
from tf_sparse_attention.ops.positions import rotate_key


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
        **kwargs: the other arguments of `AttentionLayer`. Distances of `position` are those of places in the sequence,
            so a row up is `width` away in the order "raster". "relative" clips them at `max_distance`, by default the
            farthest key; its cost is O(T max_distance), so give it less where blocks are large.

    Raises:
        ValueError: for a wrong argument, and for a length that is known to be more than `height` rows have.

    Example:
        >>> x = keras.random.normal((2, 32 * 32, 64))
        >>> layer = LocalAttention2D(num_heads=4, key_dim=16, width=32)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1024, 64)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        width,
        height=None,
        block_shape=(8, 8),
        num_blocks_before=None,
        num_blocks_after=None,
        order="raster",
        **kwargs,
    ):
        super().__init__(num_heads, key_dim, **kwargs)
        checks.check_count("width", width)
        checks.check_optional_count("height", height)
        checks.check_choice("order", order, ORDERS)
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

    @property
    def image(self):
        """The `Image` that sequences are the first pixels of."""
        return Image(self.width, self.block_shape, self.order, self.height)

    @property
    def reach(self):
        return max(self._farthest(*blocks) for blocks in self._blocks(causal=False))

    def _farthest(self, rows, columns):
        """Returns the distance of the farthest key on a side where so many blocks are seen."""
        height, width = self.image.block_height, self.image.block_width
        along = min((columns + 1) * width, self.width)  # pixels of a row from end to end of what is seen
        if self.order == "raster":
            return ((rows + 1) * height - 1) * self.width + along - 1
        return rows * self.image.band_size + along * height - 1

    def _blocks(self, causal):
        """Returns the blocks seen above and to the left of the own one, and those below and to the right."""
        before = (1, 1) if self.num_blocks_before is None else self.num_blocks_before
        below, right = before if self.num_blocks_after is None else self.num_blocks_after
        return before, (0 if causal else below, right)

    def attend_heads(self, query, key, value, masks, causal, training, return_weights):
        self._check_lengths(query=query, value=value)
        attended = local_attention_2d(
            query * self.key_dim**-0.5,
            key,
            value,
            self.image,
            *self._blocks(causal),
            causal=causal,
            masks=masks,
            position=self.position_of_heads,
            dropout=self.dropout_of_weights(training),
            return_weights=return_weights,
        )
        return attended.output, attended.weights

    def _check_lengths(self, **heads):
        """Raises a `ValueError` if queries or values (B, N, T, H) are known to be more than the image has."""
        for name, x in heads.items():
            if self.height is not None and x.shape[2] is not None and x.shape[2] > self.height * self.width:
                raise ValueError(
                    f"`{name}` must have at most `height` times `width` positions. Received: {x.shape[2]} positions, "
                    f"height={self.height}, width={self.width}."
                )

    reason_against_cache = None

    def new_cache(self, batch_size, max_length):
        most = None if self.height is None else self.height * self.width
        if most is not None and isinstance(max_length, int) and max_length > most:
            raise ValueError(
                f"`max_length` must be at most `height` times `width`, {most}. Received: max_length={max_length}."
            )
        before, _ = self._blocks(causal=True)
        sizes = self.num_heads, at_most(self._farthest(*before) + 1, max_length), self.key_dim, self.value_dim
        return empty_places(batch_size, *sizes, self.compute_dtype)

    def fill_cache(self, cache, query, key, value, lengths):
        return keep_last(cache, rotate_key(self.position_of_heads, key), value, lengths)

    def decode_heads(self, query, key, value, cache, index):
        position = self.position_of_heads
        cache = keep_next(cache, rotate_key(position, key, index), value, index)
        kept = kept_last(cache, index)
        at_query = index[:, None, None]
        near = near_pixels(at_query, at_query + kept.tokens, self.image, *self._blocks(causal=True))
        kept = kept._replace(seen=ops.logical_and(kept.seen, near))
        return attend_kept(query * self.key_dim**-0.5, kept, index, position).output, cache

    def pattern(self, query, key, masks, causal):
        self._check_lengths(query=query, value=key)
        return image_mask(shape(query)[2], shape(key)[2], self.image, *self._blocks(causal), causal)

    def get_config(self):
        names = ("width", "height", "block_shape", "num_blocks_before", "num_blocks_after", "order")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
