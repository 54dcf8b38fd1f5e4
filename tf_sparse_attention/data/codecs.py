"""Codecs of images and of audio samples as sequences of bytes."""

import functools
from typing import Self

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import is_tensor
from tf_sparse_attention.types import Config, Tensor

NUM_SPECIAL = 1
NUM_BYTES = 256
MU = 255
SCALE = 32768  # 16-bit samples are in [-SCALE, SCALE)


class ByteCodec:
    """Base class of codecs with one id per byte: byte b has the id b + 1, and id 0 is padding and the start id."""

    pad_id = start_id = 0
    vocabulary_size = NUM_SPECIAL + NUM_BYTES

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create a codec from its config."""
        return cls(**config)

    def _to_bytes(self, ids):
        """Convert ids to bytes, int32. Ids in tensors are clipped, because a check would slow down the graph."""
        if is_tensor(ids):
            import tensorflow as tf

            return tf.clip_by_value(tf.cast(ids, tf.int32) - NUM_SPECIAL, 0, NUM_BYTES - 1)
        ids = np.asarray(ids)
        wrong = ids[(ids < NUM_SPECIAL) | (ids >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(f"`ids` must be in [1, 257). Received: id {wrong[0]}.")
        return ids.astype(np.int32) - NUM_SPECIAL


class ImageCodec(ByteCodec):
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
        checks.check_choice("order", order, ("raster", "blocks"))
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
        images = images if is_tensor(images) else np.asarray(images)
        dtype = images.dtype.name
        if dtype != "uint8" or len(images.shape) not in (3, 4) or tuple(images.shape[-3:]) != self.shape:
            raise ValueError(
                f"`images` must be uint8 of shape (B, H, W, C) or (H, W, C) with (H, W, C) = {self.shape}. "
                f"Received: {dtype} of shape {tuple(images.shape)}."
            )
        content = _reshape(images, len(images.shape) > 3, (self.length,))
        return _cast(content if self.block_shape is None else _take(content, self._order), "int32") + NUM_SPECIAL

    def decode(self, ids: Tensor) -> Tensor:
        """Convert ids to images.

        Args:
            ids: integers (B, T) or (T,): sequence, array or tensor.

        Returns:
            uint8 array or tensor (B, H, W, C) or (H, W, C). Ids in tensors are clipped to [1, 257).

        Raises:
            ValueError: If `ids` has another shape, or an id of a sequence or array is not in [1, 257).
        """
        content = self._to_bytes(ids)
        if len(content.shape) not in (1, 2) or content.shape[-1] != self.length:
            raise ValueError(
                f"`ids` must have the shape (B, {self.length}) or ({self.length},). Received: {content.shape}."
            )
        content = _cast(content, "uint8")
        content = content if self.block_shape is None else _take(content, self.positions().ravel())
        return _reshape(content, len(content.shape) > 1, self.shape)

    @functools.cached_property
    def _order(self):
        """Index of each id in the bytes of an image in raster order, int64 (T,)."""
        block_rows, block_columns, rows, columns, channels = self.grid
        indices = np.arange(self.length).reshape(block_rows, rows, block_columns, columns, channels)
        return indices.swapaxes(1, 2).ravel()

    def positions(self) -> np.ndarray:
        """Return the position of each byte of an image in its sequence, int64 (H, W, C)."""
        order = np.arange(self.length) if self.block_shape is None else np.argsort(self._order)
        return order.reshape(self.shape)

    def num_ids_above(self, row: int) -> int:
        """Return the number of ids before the first id of the image rows `row` to H - 1; `row` is in [0, H]."""
        return int(self.positions()[row:].min(initial=self.length))

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        block_shape = None if self.block_shape is None else list(self.block_shape)
        sizes = {"height": self.height, "width": self.width, "channels": self.channels}
        return {**sizes, "order": self.order, "block_shape": block_shape}


class AudioCodec(ByteCodec):
    """Mu-law codec: each 16-bit sample is one byte, and byte b has the id b + 1.

    The companding function of ITU-T G.711 with mu = 255, for a sample x in [-1, 1), is

    F(x) = sign(x) ln(1 + mu |x|) / ln(1 + mu).

    F(x) is rounded to one of 256 values from -1 to 1. Steps are 6 units (of 32,768) near silence and 1,400 at full
    scale. `encode(decode(ids))` equals `ids`. `decode(encode(samples))` is within 5 % of each sample, or within 5 units
    for samples below 100.

    Id 0 is padding and the start id before the first sample; the vocabulary has 257 ids. In the token store of an
    `AudioSource`, id 0 separates recordings and is never scored: a model does not learn where a recording ends.

    Note: differs from G.711, which has line segments and two bytes for silence. Silence is decoded as 3 units.

    Args:
        sample_rate: samples per second of written files. Ids are independent of the rate.

    Raises:
        ValueError: If `sample_rate` is not a positive integer.

    Example:

    >>> codec = AudioCodec(sample_rate=8000)
    >>> codec.encode(np.array([-32768, 0, 1000, 32767], np.int16))
    array([  1, 129, 178, 256], dtype=int32)
    >>> codec.decode([1, 129, 178, 256])
    array([-32768,      3,    978,  32767], dtype=int16)
    """

    end_id = 0

    def __init__(self, sample_rate: int) -> None:
        checks.check_count("sample_rate", sample_rate)
        self.sample_rate = sample_rate

    def encode(self, samples: Tensor) -> Tensor:
        """Convert samples to ids.

        Args:
            samples: int16 array or tensor of any shape.

        Returns:
            int32 array or tensor of the same shape.

        Raises:
            ValueError: If `samples` has another dtype.
        """
        samples = samples if is_tensor(samples) else np.asarray(samples)
        if samples.dtype.name != "int16":
            shape = tuple(samples.shape)
            raise ValueError(f"`samples` must be int16. Received: {samples.dtype.name} of shape {shape}.")
        return _cast(_take(_encoding_table(), _cast(samples, "int32") + SCALE), "int32") + NUM_SPECIAL

    def decode(self, ids: Tensor) -> Tensor:
        """Convert ids to samples.

        Args:
            ids: integers of any shape: sequence, array or tensor.

        Returns:
            int16 array or tensor of the same shape. Ids in tensors are clipped to [1, 257).

        Raises:
            ValueError: If an id of a sequence or array is not in [1, 257).
        """
        return _take(_decoding_table(), self._to_bytes(ids))

    def tokenize(self, content: bytes) -> np.ndarray:
        """Convert bytes to ids, int32 (T,); see `AudioSource.documents`."""
        return np.frombuffer(content, np.uint8).astype(np.int32) + NUM_SPECIAL

    def get_config(self) -> Config:
        """Return the arguments of the constructor."""
        return {"sample_rate": self.sample_rate}


@functools.cache
def _encoding_table() -> np.ndarray:
    """Return the byte of each sample from -32768 to 32767, uint8 (65536,).

    A table gives equal results in NumPy and TensorFlow, which round logarithms differently.
    """
    x = np.arange(-SCALE, SCALE) / SCALE
    companded = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
    return np.floor((companded + 1) / 2 * MU + 0.5).astype(np.uint8)


@functools.cache
def _decoding_table() -> np.ndarray:
    """Return the sample of each byte, int16 (256,)."""
    companded = 2 * np.arange(NUM_BYTES) / MU - 1
    x = np.sign(companded) * np.expm1(np.abs(companded) * np.log1p(MU)) / MU
    return np.clip(np.round(x * SCALE), -SCALE, SCALE - 1).astype(np.int16)


def _cast(x, dtype):
    if not is_tensor(x):
        return x.astype(dtype)
    import tensorflow as tf

    return tf.cast(x, dtype)


def _take(x, indices):
    """Select elements of the last axis."""
    if not is_tensor(x) and not is_tensor(indices):
        return np.take(x, indices, axis=-1)
    import tensorflow as tf

    return tf.gather(x, indices, axis=-1)


def _reshape(x, is_batch, shape):
    if not is_tensor(x):
        return np.reshape(x, (*x.shape[:is_batch], *shape))
    import tensorflow as tf

    return tf.reshape(x, (-1, *shape) if is_batch else shape)
