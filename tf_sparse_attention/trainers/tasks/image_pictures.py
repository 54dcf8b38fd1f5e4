"""Pictures of images that a model draws or completes, and of what a pixel attends to."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.atomic_files import atomic_file

MARGIN = 2  # pixels around each image of a picture
SMALLEST = 96  # pixels of a side of an image in a picture: smaller ones are magnified
GREY, YELLOW, RED = 128, (255, 220, 0), (255, 0, 0)
COLUMNS = 8


def num_given(codec: tsa.data.ImageCodec) -> int:
    """Returns the bytes before the first one of the lower half of an image."""
    return codec.num_ids_above(codec.height // 2)


def picture_of_samples(
    codec: tsa.data.ImageCodec, samples: Sequence[dict[str, Any]], images: np.ndarray | None = None
) -> np.ndarray:
    """Returns samples as one picture, uint8 (height, width, 3): up to 8 in a row, bytes that are missing grey.

    Args:
        codec: the `ImageCodec` of the images.
        samples: from `Task.draw_images`.
        images: those that were completed: what was given of them is above each, and they themselves are below.
    """
    drawn = _images_of(codec, [sample["token_ids"] for sample in samples])
    if images is None:
        return tiled([drawn[begin : begin + COLUMNS] for begin in range(0, len(drawn), COLUMNS)])
    whole = np.asarray(images[: len(samples)])
    given = _images_of(codec, codec.encode(whole)[:, : num_given(codec)])
    rows = []
    for begin in range(0, len(drawn), COLUMNS):
        rows += [part[begin : begin + COLUMNS] for part in (given, drawn, whole)]
    return tiled(rows)


def _images_of(codec, rows):
    """Returns the images of sequences that may end early."""
    ids = np.full((len(rows), codec.length), GREY + 1, np.int32)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found)] = found
    return codec.decode(ids)


def tiled(rows: Sequence[Any]) -> np.ndarray:
    """Returns a grid of images, uint8 (height, width, 3), small ones magnified.

    Args:
        rows: lists or arrays of images uint8 (H, W, C), all of one shape; of 1 or 2 channels the first is grey, of
            others the first 3 are colours.
    """
    height, width = rows[0][0].shape[:2]
    scale = max(1, -(-SMALLEST // max(height, width)))
    size = height * scale + MARGIN, width * scale + MARGIN
    picture = np.full((MARGIN + len(rows) * size[0], MARGIN + max(map(len, rows)) * size[1], 3), 255, np.uint8)
    for number, row in enumerate(rows):
        for place, image in enumerate(row):
            top, left = MARGIN + number * size[0], MARGIN + place * size[1]
            colours = image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)
            large = np.repeat(np.repeat(colours, scale, axis=0), scale, axis=1)
            picture[top : top + height * scale, left : left + width * scale] = large
    return picture


def attention_picture(model: Any, codec: tsa.data.ImageCodec, image: np.ndarray) -> np.ndarray:
    """Returns what one pixel of an image attends to, uint8 (height, width, 3): a row a block, a column a head.

    The image is darkened, and yellow where a head attends, relative to its largest weight; the pixel, in the middle of
    the lower half, is red.

    Args:
        model: a `LanguageModel`.
        codec: the `ImageCodec` of its images.
        image: uint8 (H, W, C).
    """
    pixel = codec.height * 3 // 4, codec.width // 2
    colours = image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)
    rows = []
    for weights in tsa.analysis.pixel_attention(model, codec, image, pixel):
        shares = weights / np.maximum(weights.max(axis=(1, 2), keepdims=True), 1e-9)
        mixed = (1 - shares[..., None]) * 0.5 * colours + shares[..., None] * np.array(YELLOW)
        heads = np.round(mixed).astype(np.uint8)
        heads[:, pixel[0], pixel[1]] = RED
        rows.append(heads)
    return tiled(rows)


def write_png(path: str | os.PathLike, picture: np.ndarray) -> None:
    """Writes a picture, uint8 (height, width, 3), as a PNG file, atomically."""
    from PIL import Image

    with atomic_file(path) as temporary:
        Image.fromarray(picture).save(temporary, "png")
