"""Images as sequences of the bytes of their channels, and back."""

from typing import Any, Self

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tensors import is_tensor
from tf_sparse_attention.types import Config, Tensor

NUM_SPECIAL = 1
NUM_BYTES = 256
ORDERS = ("raster", "blocks")


class ImageCodec:
    """Maps images to ids, a byte of a channel each, and back, exactly: byte b is id b + 1.

    Id 0 is padding and also the start id that a model reads before the first byte; an image has a known length, so no
    id ends it. The vocabulary has 257 ids. T = H W C ids are an image of H rows, W columns and C channels.

    Two orders: "raster" is row, column, channel, as in a file. "blocks" is block by block, these row by row, and in the
    order "raster" inside each. Positions fit the order by `grid`, the axes of a `GridEmbedding`: (H, W, C), or in the
    order "blocks" (H / h, W / w, h, w, C), whose vectors of a block and of a row inside it are a row of the image
    together. A `LocalAttention2D` of `width=W * C` has the bytes of a row beside each other: its `block_shape` is
    (h, w * C) for blocks of h x w pixels, its `order` that of the codec, and in the order "blocks" h and w are those of
    both.

    Args:
        height: H, rows of an image.
        width: W, columns.
        channels: C. Default 3.
        order: "raster" or "blocks". Default "raster".
        block_shape: (h, w), rows and columns of a block, which divide those of the image. Only for the order "blocks",
            which needs it.

    Raises:
        ValueError: for a wrong argument.

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
                "`block_shape` must be given for the order 'blocks', and for no other. "
                f"Received: order={order!r}, block_shape={block_shape}."
            )
        self.height, self.width, self.channels, self.order = height, width, channels, order
        self.block_shape = None if block_shape is None else checks.checked_pair("block_shape", block_shape)
        if self.block_shape is not None and (height % self.block_shape[0] or width % self.block_shape[1]):
            raise ValueError(
                "`block_shape` must divide the rows and the columns of the image. "
                f"Received: block_shape={self.block_shape}, an image of {height} x {width}."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        return self.height, self.width, self.channels

    @property
    def length(self) -> int:
        """T, the ids of an image."""
        return self.height * self.width * self.channels

    @property
    def grid(self) -> tuple[int, ...]:
        """The axes of a sequence, the last one running fastest, for a `GridEmbedding`."""
        if self.block_shape is None:
            return self.shape
        rows, columns = self.block_shape
        return self.height // rows, self.width // columns, rows, columns, self.channels

    def encode(self, images: Tensor) -> Tensor:
        """Returns the ids of images.

        Args:
            images: uint8 (B, H, W, C) or (H, W, C), an array or, in a graph of TensorFlow too, a tensor.

        Returns:
            int32 (B, T) or (T,), an array for an array and a tensor for a tensor.

        Raises:
            ValueError: for another dtype or shape.
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
        """Returns the images of ids.

        Args:
            ids: integers (B, T) or (T,): a sequence, an array or a tensor.

        Returns:
            uint8 (B, H, W, C) or (H, W, C), an array, or a tensor for a tensor. In a tensor an id that is no byte gives
            byte 0 or 255, since a graph cannot raise cheaply.

        Raises:
            ValueError: for another shape, and for ids that are no bytes in anything but a tensor.
        """
        if not is_tensor(ids):
            ids = np.asarray(ids)
            wrong = ids[(ids < NUM_SPECIAL) | (ids >= self.vocabulary_size)]
            if wrong.size:
                raise ValueError(f"`ids` must be in [1, 257), those of bytes. Received: {wrong[0]} among them.")
        if len(ids.shape) not in (1, 2) or ids.shape[-1] != self.length:
            raise ValueError(
                f"`ids` must have the shape (B, {self.length}) or ({self.length},). Received: {ids.shape}."
            )
        if not is_tensor(ids):
            return self._to_image((ids - NUM_SPECIAL).astype(np.uint8))
        import tensorflow as tf

        return self._to_image(tf.cast(tf.clip_by_value(ids - NUM_SPECIAL, 0, NUM_BYTES - 1), tf.uint8))

    def positions(self) -> np.ndarray:
        """Returns where the bytes of an image are in its sequence, int64 (H, W, C)."""
        return self._to_image(np.arange(self.length))

    def num_ids_above(self, row: int) -> int:
        """Returns how many ids of an image come before the first one of a row, 0 to H, and of those below."""
        return int(self.positions()[row:].min(initial=self.length))

    def _to_sequence(self, images):
        lead = _lead(images, 3)
        if self.block_shape is not None:
            band, column, row, place, channel = self.grid
            images = _transposed(_reshaped(images, (*lead, band, row, column, place, channel)))
        return _reshaped(images, (*lead, self.length))

    def _to_image(self, sequence):
        lead = _lead(sequence, 1)
        if self.block_shape is not None:
            sequence = _transposed(_reshaped(sequence, (*lead, *self.grid)))
        return _reshaped(sequence, (*lead, *self.shape))

    def get_config(self) -> Config:
        """Returns the arguments of the constructor, plain data."""
        block_shape = None if self.block_shape is None else list(self.block_shape)
        sizes = {"height": self.height, "width": self.width, "channels": self.channels}
        return {**sizes, "order": self.order, "block_shape": block_shape}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Returns the codec of a `get_config`."""
        return cls(**config)


def _lead(x: Any, num_axes: int) -> tuple[int, ...]:
    """Returns the axis of the batch, -1, if there is one before so many others."""
    return (-1,) if len(x.shape) > num_axes else ()


def _reshaped(x, shape):
    if not is_tensor(x):
        return np.reshape(x, (len(x), *shape[1:]) if shape[0] == -1 else shape)  # an empty batch has no -1
    import tensorflow as tf

    return tf.reshape(x, shape)


def _transposed(x):
    """Swaps the second and the third of the last five axes: of rows inside blocks and of columns of blocks."""
    first = len(x.shape) - 5
    axes = [*range(first + 1), first + 2, first + 1, first + 3, first + 4]
    if not is_tensor(x):
        return np.transpose(x, axes)
    import tensorflow as tf

    return tf.transpose(x, axes)
