"""Batches of images as sequences of bytes."""

import numpy as np

from tf_sparse_attention.checks import check_count, check_optional_count, check_seed, check_switch
from tf_sparse_attention.data.batches.batches import Batches, consecutive_rows
from tf_sparse_attention.data.batches.random_order import shuffled_index
from tf_sparse_attention.data.batches.windows import pack_windows
from tf_sparse_attention.data.codecs import ImageCodec


def image_batches(
    images: np.ndarray, codec: ImageCodec, batch_size: int, seed: int = 0, use_flips: bool = False
) -> Batches:
    """Return infinite batches of images in random order.

    An epoch contains each image once. A batch can contain the end of an epoch and the start of the next.

    Args:
        images: uint8 (N, H, W, C), an array in memory or on disk, such as from `ImageSource.array`.
        codec: `ImageCodec` for this shape.
        batch_size: images per batch, over all replicas.
        seed: integer in [0, 2**63). Default 0.
        use_flips: whether to flip a random half of the images horizontally in each epoch. Default False.

    Returns:
        `Batches` of `(inputs, targets, weights)`, see `pack_images`.

    Raises:
        ValueError: If the images do not have the shape of the codec, or an argument is out of range.

    Example:

    >>> images = np.random.default_rng(0).integers(256, size=(10, 8, 8, 3), dtype=np.uint8)
    >>> batches = image_batches(images, ImageCodec(8, 8), batch_size=2)
    >>> inputs, targets, weights = batches[300]
    >>> inputs["token_ids"].shape
    (2, 192)
    """
    check_count("batch_size", batch_size)
    check_switch("use_flips", use_flips)
    _check_images(images, codec)
    check_seed(seed)

    def read(rows):
        epoch, position = np.divmod(rows.items, len(images))
        chosen = images[shuffled_index(position, seed, epoch, len(images))]
        if use_flips:
            # One generator per image, so that the result does not depend on the batch size or the process.
            draws = [np.random.Generator(np.random.Philox(key=[seed, int(item)])).random() for item in rows.items]
            chosen = np.where(np.array(draws)[:, None, None, None] < 0.5, chosen[:, :, ::-1], chosen)
        return pack_images(codec.encode(chosen))

    return Batches(consecutive_rows(batch_size), read, steps_per_epoch=-(-len(images) // batch_size))


def image_evaluation_batches(
    images: np.ndarray, codec: ImageCodec, batch_size: int, max_images: int | None = None
) -> Batches:
    """Return batches of images in order; each byte is one target of weight 1.

    The last batch can have empty rows of weight 0, so all batches have the same shape. Bits per dimension are the
    summed nats divided by ln 2 and by the number of bytes.

    Args:
        images, codec, batch_size: see `image_batches`.
        max_images: maximum number of images, evenly spaced over all images. Default: None, all.

    Returns:
        `Batches` of `(inputs, targets, weights)`, see `pack_images`.

    Raises:
        ValueError: See `image_batches`.
    """
    check_count("batch_size", batch_size)
    check_optional_count("max_images", max_images)
    _check_images(images, codec)
    count = len(images) if max_images is None else min(len(images), max_images)

    def read(rows):
        exists = rows.items >= 0
        ids = np.zeros((len(rows.items), codec.length), np.int32)
        ids[exists] = codec.encode(images[rows.items[exists] * len(images) // count])
        return pack_images(ids)

    return Batches(consecutive_rows(batch_size, count), read, -(-count // batch_size))


def pack_images(ids: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return inputs, targets and weights for a language model of images.

    Args:
        ids: int32 (B, T), from `ImageCodec.encode`; rows of zeros are empty.

    Returns:
        `(inputs, targets, weights)`: inputs {"token_ids"}, the ids shifted right by one after id 0; targets, the ids;
        weights, float32 (B, T), 0 in empty rows.
    """
    return pack_windows(ids, use_packing=False, padded=False)


def _check_images(images, codec):
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != codec.shape or len(images) == 0:
        raise ValueError(
            f"`images` must be uint8 (N, H, W, C) with N > 0 and the (H, W, C) of `codec`, {codec.shape}. "
            f"Received: {images.dtype} of shape {images.shape}."
        )
