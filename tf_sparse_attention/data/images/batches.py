"""Batches of images as sequences of bytes."""

from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count, check_seed, check_switch
from tf_sparse_attention.data.batches.random_order import shuffled_index
from tf_sparse_attention.data.batches.streams import batch_stream, on_arrays
from tf_sparse_attention.data.images.codec import ImageCodec
from tf_sparse_attention.types import Tensor


class ImageBatches:
    """Endless batches of images in random order; batch k is a pure function of (seed, k).

    An epoch has each image once, in an order that is drawn for each; a batch may hold the end of one epoch and the
    start of the next. The order is that of `shuffled_index`, as in `TrainingBatches`, so that starting at
    step k costs the same for every k.

    Args:
        images: uint8 (N, H, W, C), an array that may lie on the disk, such as `ImageSource.array` returns.
        codec: `ImageCodec` of their shape.
        batch_size: images in a batch, over all replicas.
        seed: integer in [0, 2**63). Default 0.
        use_flips: whether half of the images, drawn for each epoch, are mirrored, left to right. Default False.

    Attributes:
        steps_per_epoch: batches in an epoch, rounded up.

    Raises:
        ValueError: for images of another shape than that of the codec, and for a wrong argument.

    Example:

    >>> images = np.random.default_rng(0).integers(256, size=(10, 8, 8, 3), dtype=np.uint8)
    >>> batches = ImageBatches(images, ImageCodec(8, 8), batch_size=2)
    >>> inputs, targets, weights = next(iter(batches.dataset(start_step=300)))
    >>> tuple(inputs["token_ids"].shape)
    (2, 192)
    """

    def __init__(
        self, images: np.ndarray, codec: ImageCodec, batch_size: int, seed: int = 0, use_flips: bool = False
    ) -> None:
        check_count("batch_size", batch_size)
        check_switch("use_flips", use_flips)
        _check_images(images, codec)
        check_seed(seed)
        self.images, self.codec, self.batch_size = images, codec, batch_size
        self.seed, self.use_flips = seed, use_flips
        self.steps_per_epoch = -(-len(images) // batch_size)

    def dataset(
        self,
        start_step: int = 0,
        num_steps: int | None = None,
        num_shards: int = 1,
        shard_index: int = 0,
        num_parts: int = 1,
    ) -> Any:
        """Makes the data set of the batches from a step on.

        Args:
            start_step: the first step.
            num_steps: number of steps. None: endless. Default: None.
            num_shards, shard_index, num_parts: see `shard_rows`.

        Returns:
            `tf.data.Dataset` of `(inputs, targets, weights)` with static shapes, see `pack_images`.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        stop = None if num_steps is None else start_step + num_steps
        return batch_stream(self._element, self.batch_size, start_step, stop, num_shards, shard_index, num_parts)

    def _element(self, step, first_row, rows):
        """Returns rows `first_row` to `first_row + rows` of the batch of a step."""
        index = step * self.batch_size + first_row + np.arange(rows, dtype="int64")
        epoch, place = index // len(self.images), index % len(self.images)
        images = self._read(index, shuffled_index(place, self.seed, epoch, len(self.images)))
        return pack_images(self.codec.encode(images))

    def _read(self, index, chosen):
        """Returns images by their numbers; `index` counts the images of all epochs, which flips are drawn for."""
        images = self.images[chosen]
        if not self.use_flips:
            return images
        # One generator an image, so that the result does not depend on batch size or device.
        draws = [np.random.Generator(np.random.Philox(key=[self.seed, int(number)])).random() for number in index]
        return np.where(np.array(draws)[:, None, None, None] < 0.5, images[:, :, ::-1], images)


def image_evaluation_batches(
    images: np.ndarray,
    codec: ImageCodec,
    batch_size: int,
    max_images: int | None = None,
    first_batch: int = 0,
    num_batches: int | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    num_parts: int = 1,
) -> Any:
    """Returns batches of images one after the other; the targets of weight 1 in order are exactly their bytes.

    The last batch has empty rows of weight 0, so that all have one shape. Bits per dimension are the summed nats
    divided by ln 2 and by the bytes.

    Args:
        images, codec, batch_size: as for `ImageBatches`.
        max_images: maximum number of images, evenly spread over all. None: all. Default: None.
        first_batch: index of the first batch, to resume. Default 0.
        num_batches: number of batches. None: all remaining ones.
        num_shards, shard_index, num_parts: see `shard_rows`.

    Returns:
        Finite `tf.data.Dataset` of `(inputs, targets, weights)`, see `pack_images`.

    Raises:
        ValueError: as `ImageBatches`.
    """
    check_count("batch_size", batch_size)
    check_optional_count("max_images", max_images)
    _check_images(images, codec)
    count = len(images) if max_images is None else min(len(images), max_images)
    last = -(-count // batch_size)
    last = last if num_batches is None else min(last, first_batch + num_batches)

    def element(batch, first_row, rows):
        first = batch * batch_size + first_row
        ids = np.zeros((rows, codec.length), np.int32)
        numbers = range(first, min(first + rows, count))
        if numbers:
            ids[: len(numbers)] = codec.encode(images[[number * len(images) // count for number in numbers]])
        return pack_images(ids)

    stop = max(first_batch, last)
    return batch_stream(element, batch_size, first_batch, stop, num_shards, shard_index, num_parts)


def pack_images(ids: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Returns inputs, targets and weights of a language model, of the ids of images.

    Args:
        ids: int32 (B, T), from `ImageCodec.encode`; a row of zeros is no image.

    Returns:
        `(inputs, targets, weights)`: inputs {"token_ids"}, the ids moved right by one with id 0 first; targets the ids;
        weights float32 (B, T), 0 in rows without an image.
    """

    def pack(ids):
        return {"token_ids": np.pad(ids[:, :-1], [(0, 0), (1, 0)])}, ids, (ids != 0).astype("float32")

    return on_arrays(pack, ids)


def _check_images(images, codec):
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != codec.shape or len(images) == 0:
        raise ValueError(
            f"`images` must be uint8 (N, H, W, C), one or more, with (H, W, C) = {codec.shape}, that of `codec`. "
            f"Received: {images.dtype} of shape {images.shape}."
        )
