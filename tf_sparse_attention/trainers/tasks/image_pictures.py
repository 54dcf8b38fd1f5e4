"""Pictures of generated images, and of the attention of a pixel."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.atomic_files import atomic_file

MARGIN = 2  # pixels between images of a grid
MIN_SIZE = 96  # pixels; smaller images are magnified
GREY, YELLOW, RED = 128, (255, 220, 0), (255, 0, 0)
COLUMNS = 8


def num_given(codec: tsa.data.ImageCodec) -> int:
    """Return the number of bytes in the upper half of an image."""
    return codec.num_ids_above(codec.height // 2)


def draw_samples(
    codec: tsa.data.ImageCodec, samples: Sequence[dict[str, Any]], images: np.ndarray | None = None
) -> np.ndarray:
    """Draw samples as a grid with 8 columns, uint8 (height, width, 3). Missing bytes are grey.

    Args:
        codec: the `ImageCodec` of the images.
        samples: from `Task.draw_images`.
        images: the original images, if they were completed. The upper half of the original is above each sample, and
            the original is below. Default: None.
    """
    drawn = _decode_partial(codec, [sample["token_ids"] for sample in samples])
    if images is None:
        return draw_grid([drawn[begin : begin + COLUMNS] for begin in range(0, len(drawn), COLUMNS)])
    originals = np.asarray(images[: len(samples)])
    upper_halves = _decode_partial(codec, codec.encode(originals)[:, : num_given(codec)])
    rows = []
    for begin in range(0, len(drawn), COLUMNS):
        rows += [part[begin : begin + COLUMNS] for part in (upper_halves, drawn, originals)]
    return draw_grid(rows)


def _decode_partial(codec, sequences):
    """Decode sequences of ids that may be shorter than an image."""
    ids = np.full((len(sequences), codec.length), GREY + 1, np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    return codec.decode(ids)


def draw_grid(rows: Sequence[Any]) -> np.ndarray:
    """Draw a grid of images, uint8 (height, width, 3). Small images are magnified.

    Args:
        rows: lists or arrays of images, uint8 (H, W, C), all of the same shape. Images with 1 or 2 channels are grey;
            others have red, green and blue as their first channels.
    """
    height, width = rows[0][0].shape[:2]
    scale = max(1, -(-MIN_SIZE // max(height, width)))
    size = height * scale + MARGIN, width * scale + MARGIN
    picture = np.full((MARGIN + len(rows) * size[0], MARGIN + max(map(len, rows)) * size[1], 3), 255, np.uint8)
    for row_index, row in enumerate(rows):
        for column, image in enumerate(row):
            top, left = MARGIN + row_index * size[0], MARGIN + column * size[1]
            colours = image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)
            large = np.repeat(np.repeat(colours, scale, axis=0), scale, axis=1)
            picture[top : top + height * scale, left : left + width * scale] = large
    return picture


def draw_attention(model: Any, codec: tsa.data.ImageCodec, image: np.ndarray) -> np.ndarray:
    """Draw the attention of one pixel, uint8 (height, width, 3): one row per block, one column per head.

    The image is darkened. Yellow marks attention weights, relative to the largest weight of the head. Red marks the
    query pixel in the middle of the lower half.

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
    return draw_grid(rows)


def write_png(path: str | os.PathLike, picture: np.ndarray) -> None:
    """Write a picture, uint8 (height, width, 3), to a PNG file, atomically."""
    from PIL import Image

    with atomic_file(path) as temporary:
        Image.fromarray(picture).save(temporary, "png")
