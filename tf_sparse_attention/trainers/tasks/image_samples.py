"""Images that a model draws or completes, and pictures of them and of what a pixel looks at."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import sampling
from tf_sparse_attention.trainers.shared.files import atomic_file
from tf_sparse_attention.trainers.tasks import byte_samples
from tf_sparse_attention.trainers.tasks.parts import Generated, Request

SAMPLES, COMPLETIONS = "samples.png", "completions.png"
FOREIGN = ("prompt", "length")  # of a request
MARGIN = 2  # pixels around each image of a picture
SMALLEST = 96  # pixels of a side of an image in a picture: smaller ones are magnified
GREY, YELLOW, RED = 128, (255, 220, 0), (255, 0, 0)
COLUMNS = 8


class Painter(NamedTuple):
    """What draws images.

    Attributes:
        model: a `LanguageModel`.
        codec: the `ImageCodec` of its images.
        defaults: `config.generate` as a dictionary.
    """

    model: Any
    codec: tsa.data.ImageCodec
    defaults: dict[str, Any]

    @property
    def num_given(self) -> int:
        """The bytes before the first one of the lower half of an image."""
        return self.codec.num_ids_above(self.codec.height // 2)


def generate(
    painter: Painter,
    images: np.ndarray | None,
    request: Request,
    show: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Generated:
    """Draws whole images, or completes some of which the upper half is given, and writes a PNG of them.

    Args:
        painter: the `Painter`.
        images: uint8 (N, H, W, C), of which the first are completed. None: whole images are drawn.
        request: its `prompt` and `length` have to be None.
        show: function of all samples so far, called whenever they grow.

    Returns:
        `Generated`: samples are dictionaries with "token_ids", all of the image if it was not interrupted,
        "num_tokens" that were drawn, their "log_prob" and "bits_per_dim", "seed" and the settings.

    Raises:
        ValueError: For a request that does not suit images, or more of them than there are.
        KeyboardInterrupt: If it is interrupted before the first byte.
    """
    _check(request, images)
    settings = byte_samples.settings_of(request, painter.defaults)

    def snapshots(numbers):
        prompts = [np.zeros(0, np.int32)] * len(numbers)
        if images is not None:
            chosen = images[[number % len(images) for number in numbers]]
            prompts = list(painter.codec.encode(chosen)[:, : painter.num_given])
        seeds = [request.seed + number for number in numbers]
        return byte_samples.snapshots(painter.model, prompts, painter.codec.length, seeds, settings, "bits_per_dim")

    def write(samples):
        if request.path is not None:
            write_png(request.path, as_picture(painter, samples, images))

    samples = sampling.draw(snapshots, request.num_samples, write, show)
    rows = [f"seed {sample['seed']}: {sample['bits_per_dim']:.4f} bits per dimension" for sample in samples]
    return Generated(samples, "\n".join(rows), request.path)


def _check(request, images):
    byte_samples.check_request(request, "images", FOREIGN, ".png", begin_alike=images is None)
    if images is not None and request.num_samples > len(images):
        raise ValueError(
            f"`num_samples` must be at most the {len(images)} images to complete. Received: {request.num_samples}."
        )


def as_picture(painter: Painter, samples: Sequence[dict[str, Any]], images: np.ndarray | None = None) -> np.ndarray:
    """Returns samples as one picture, uint8 (height, width, 3): up to 8 in a row, bytes that are missing grey.

    Args:
        painter: what drew them.
        samples: from `generate`.
        images: those that were completed: what was given of them is above each, and they themselves are below.
    """
    drawn = _images_of(painter.codec, [sample["token_ids"] for sample in samples])
    if images is None:
        return tiled([drawn[begin : begin + COLUMNS] for begin in range(0, len(drawn), COLUMNS)])
    whole = np.asarray(images[: len(samples)])
    given = _images_of(painter.codec, painter.codec.encode(whole)[:, : painter.num_given])
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
    """Returns images beside and below each other, uint8 (height, width, 3), small ones magnified.

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
    """Returns what one pixel of an image looks at, uint8 (height, width, 3): a row a block, a column a head.

    The image is darkened, and yellow where a head looks, relative to its largest weight; the pixel, in the middle of
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
    import tensorflow as tf

    with atomic_file(path) as temporary:
        temporary.write_bytes(tf.io.encode_png(picture).numpy())
