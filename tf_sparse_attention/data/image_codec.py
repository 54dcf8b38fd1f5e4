"""Lossless codec of images as sequences of bytes."""

from typing import Any, Self

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import is_tensor
from tf_sparse_attention.types import Config, Tensor

NUM_SPECIAL = 1
NUM_BYTES = 256
ORDERS = ("raster", "blocks")


class ImageCodec:
    """Lossless image codec: each channel of a pixel is one byte, and byte b has the id b + 1.

    Id 0 is padding and the start id before the first byte. There is no end id, because images have a fixed length. The
    vocabulary has 257 ids. An image of H rows, W columns and C channels has T = H W C ids.

    The order "raster" is row, column, channel. The order "blocks" visits blocks in raster order, and the bytes of each
    block in raster order. `grid` has the axes for a `GridEmbedding`: (H, W, C) for "raster", and
    (H / h, W / w, h, w, C) for "blocks". With "blocks", the embedding of an image row is the sum of two vectors, one
    from the axis H / h and one from the axis h.

    For a `LocalAttention2D` with blocks of h x w pixels, set `width=W * C`, `block_shape=(h, w * C)`, and `order` to
    the order of the codec. In the order "blocks", (h, w) must be the `block_shape` of the codec.

    Args:
        height: H, rows of an image.
        width: W, columns.
        channels: C. Default 3.
        order: "raster" or "blocks". Default "raster".
        block_shape: (h, w), rows and columns of a block, which must divide H and W. Required for the order "blocks",
            and None for "raster".

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> codec = ImageCodec(height=2, width=2, channels=1)
    >>> codec.encode(np.array([[[0], [7]], [[255], [1]]], np.uint8))
    array([  1,   8, 256,   2], dtype=int32)
    >>> codec.decode([1, 8, 256, 2])[:, :, 0].tolist()
    [[0, 7], [255, 1]]
    """

    pad_id = start_id = 0
    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    def __init__(
        self,
        height: int,
        width: int,
        channels: int = 3,
        order: str = "raster",
        block_shape: tuple[int, int] | None = None,
    ) -> None:
        for name, value in (("height", height), ("width", width), ("channels", channels)):
            checks.check_count(name, value)
        checks.check_choice("order", order, ORDERS)
        if (block_shape is None) == (order == "blocks"):
            raise ValueError(
                "`block_shape` must be given for the order 'blocks', and must be None for other orders. "
                f"Received: order={order!r}, block_shape={block_shape}."
            )
        self.height, self.width, self.channels, self.order = height, width, channels, order
        self.block_shape = None if block_shape is None else checks.checked_pair("block_shape", block_shape)
        if self.block_shape is not None and (height % self.block_shape[0] or width % self.block_shape[1]):
            raise ValueError(
                "`block_shape` must divide the height and width of the image. "
                f"Received: block_shape={self.block_shape}, height={height}, width={width}."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image, (H, W, C)."""
        return self.height, self.width, self.channels

    @property
    def length(self) -> int:
        """Number of ids of an image, T."""
        return self.height * self.width * self.channels

    @property
    def grid(self) -> tuple[int, ...]:
        """Axes of a sequence for a `GridEmbedding`, the last one fastest."""
        if self.block_shape is None:
            return self.shape
        rows, columns = self.block_shape
        return self.height // rows, self.width // columns, rows, columns, self.channels

    def encode(self, images: Tensor) -> Tensor:
        """Convert images to ids.

        Args:
            images: uint8 array or tensor (B, H, W, C) or (H, W, C).

        Returns:
            int32 array or tensor (B, T) or (T,).

        Raises:
            ValueError: If `images` has another dtype or shape.
        """
        if not is_tensor(images):
            images = np.asarray(images)
        dtype = getattr(images.dtype, "name", images.dtype)
        if dtype != "uint8" or len(images.shape) not in (3, 4) or tuple(images.shape[-3:]) != self.shape:
            raise ValueError(
                f"`images` must be uint8 of shape (B, H, W, C) or (H, W, C) with (H, W, C) = {self.shape}. "
                f"Received: {dtype} of shape {tuple(images.shape)}."
            )
        ids = self._to_sequence(images)
        if not is_tensor(ids):
            return ids.astype(np.int32) + NUM_SPECIAL
        import tensorflow as tf

        return tf.cast(ids, tf.int32) + NUM_SPECIAL

    def decode(self, ids: Tensor) -> Tensor:
        """Convert ids to images.

        Args:
            ids: integers (B, T) or (T,): sequence, array or tensor.

        Returns:
            uint8 array or tensor (B, H, W, C) or (H, W, C). Ids in tensors are clipped to [1, 257), because a check
            would slow down the graph.

        Raises:
            ValueError: If `ids` has another shape, or an id of a sequence or array is not in [1, 257).
        """
        if not is_tensor(ids):
            ids = np.asarray(ids)
            wrong = ids[(ids < NUM_SPECIAL) | (ids >= self.vocabulary_size)]
            if wrong.size:
                raise ValueError(f"`ids` must be in [1, 257). Received: id {wrong[0]}.")
        if len(ids.shape) not in (1, 2) or ids.shape[-1] != self.length:
            raise ValueError(
                f"`ids` must have the shape (B, {self.length}) or ({self.length},). Received: {ids.shape}."
            )
        if not is_tensor(ids):
            return self._to_image((ids - NUM_SPECIAL).astype(np.uint8))
        import tensorflow as tf

        return self._to_image(tf.cast(tf.clip_by_value(ids - NUM_SPECIAL, 0, NUM_BYTES - 1), tf.uint8))

    def positions(self) -> np.ndarray:
        """Return the position of each byte of an image in its sequence, int64 (H, W, C)."""
        return self._to_image(np.arange(self.length))

    def num_ids_above(self, row: int) -> int:
        """Return the number of ids before the first id of the image rows `row` to H - 1; `row` is in [0, H]."""
        return int(self.positions()[row:].min(initial=self.length))

    def _to_sequence(self, images):
        lead = _lead(images, 3)
        if self.block_shape is not None:
            block_rows, block_columns, rows, columns, channels = self.grid
            shape = (*lead, block_rows, rows, block_columns, columns, channels)
            images = _transposed(_reshaped(images, shape))
        return _reshaped(images, (*lead, self.length))

    def _to_image(self, sequence):
        lead = _lead(sequence, 1)
        if self.block_shape is not None:
            sequence = _transposed(_reshaped(sequence, (*lead, *self.grid)))
        return _reshaped(sequence, (*lead, *self.shape))

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        block_shape = None if self.block_shape is None else list(self.block_shape)
        sizes = {"height": self.height, "width": self.width, "channels": self.channels}
        return {**sizes, "order": self.order, "block_shape": block_shape}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create a codec from its config."""
        return cls(**config)


def _lead(x: Any, num_axes: int) -> tuple[int, ...]:
    """Return (-1,) if there is a batch axis before `num_axes` axes, otherwise ()."""
    return (-1,) if len(x.shape) > num_axes else ()


def _reshaped(x, shape):
    if not is_tensor(x):
        # NumPy cannot infer the size -1 of an empty batch.
        return np.reshape(x, (len(x), *shape[1:]) if shape[0] == -1 else shape)
    import tensorflow as tf

    return tf.reshape(x, shape)


def _transposed(x):
    """Swap two of the last five axes: rows inside blocks, and columns of blocks."""
    first = len(x.shape) - 5
    axes = [*range(first + 1), first + 2, first + 1, first + 3, first + 4]
    if not is_tensor(x):
        return np.transpose(x, axes)
    import tensorflow as tf

    return tf.transpose(x, axes)
