"""Images as byte sequences: a language model of one byte per channel and pixel."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.trainers.shared import components, sampling
from tf_sparse_attention.trainers.shared.writers import encode_png
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask, ByteValidation
from tf_sparse_attention.trainers.tasks.task import Examples, ExportTest, Generated, Names, Request, Show

SAMPLES, COMPLETIONS = "samples.png", "completions.png"
NUM_SHOWN = 4  # samples, and completed images, in TensorBoard
MARGIN = 2  # pixels between images of a grid
MIN_SIZE = 96  # pixels; smaller images are magnified
GREY, YELLOW, RED = 128, (255, 220, 0), (255, 0, 0)
COLUMNS = 8


class Validation(ByteValidation):
    """Scores of images. `data` are uint8 (N, H, W, C)."""

    metric, items = "bits_per_dim", "images"

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Return the images, or some of them if there is a limit."""
        size = self.task.config.data.batch_size
        return {"": tsa.data.image_evaluation_batches(self.data, self.task.codec, size, self.limit)}

    def num_items(self) -> int:
        return len(self.data)

    def examples(self) -> Examples:
        """Return samples, completed images, a picture of the attention of a pixel, and cluster statistics."""
        task, images, pictures = self.task, np.asarray(self.data[:NUM_SHOWN]), {}
        pictures["attention of a pixel"] = draw_attention(self.model, task.codec, images[0])
        for name, completed in (("samples", None), ("completions", images)) if self.can_draw() else ():
            samples = task.draw_images(self.model, Request(num_samples=len(images)), completed).samples
            pictures[name] = draw_samples(task.codec, samples, completed)
        clusters = self.clusters.examples(task.codec.encode(images[0]))
        return clusters._replace(pictures=pictures | clusters.pictures)


class Task(ByteTask):
    """Language modeling of images; see `trainers.tasks.task.Task`."""

    codec_class = tsa.data.ImageCodec
    settings: ClassVar[Names] = {
        "data": ("image_shape", "image_order", "image_block", "use_flips"),
        "model": components.LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": components.SAMPLING,
    }
    expected_path = "a folder of images or a file NAME.npz"
    validation = Validation

    @functools.cached_property
    def source(self) -> tsa.data.ImageSource:
        shape = self.config.data.image_shape or None
        return tsa.data.open_images(image_shape=shape, **components.data_settings(self.config))

    def make_codec(self) -> tsa.data.ImageCodec:
        data = self.config.data
        block = tuple(data.image_block) or None
        return tsa.data.ImageCodec(*self.source.shape, order=data.image_order, block_shape=block)

    def open_split(self, split: str) -> Any:
        """Open the images of a split, uint8 (N, H, W, C), on disk."""
        images, codec = self.source.array(split), self.codec
        if self.config.data.sequence_length != codec.length:
            raise ValueError(
                f"`config.data.sequence_length` must be {codec.length} for images of shape {codec.shape}. "
                f"Received: sequence_length={self.config.data.sequence_length}."
            )
        if images.shape[1:] != codec.shape:
            raise ValueError(
                f"`config.data` must have images of shape {codec.shape}, as the model requires. "
                f"Received: {self.source.name} with shape {images.shape[1:]}."
            )
        return images

    def training_batches(self) -> tsa.data.Batches:
        data, images = self.config.data, self.open_split(self.config.data.train_split)
        return tsa.data.image_batches(images, self.codec, data.batch_size, self.config.seed, data.use_flips)

    def make_model(self) -> keras.Model:
        """Create a `LanguageModel` with 257 ids; see `components.make_model`."""
        model: Any = super().make_model()
        grid = model.backbone.grid_embedding
        if grid is not None and tuple(grid.grid) != self.codec.grid:
            raise ValueError(
                f"`config.model.grid` must be {list(self.codec.grid)} for these images. "
                f"Received: grid={list(grid.grid)}."
            )
        return model

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Draw images, or complete images of the split `request.complete`, and write a PNG file; see `draw_images`."""
        images = None if request.complete is None else self.open_split(request.complete)
        path = sampling.output_path(request.path, SAMPLES if images is None else COMPLETIONS)
        return self.draw_images(model, request._replace(path=path), images, show)

    def draw_images(
        self, model: Any, request: Request, images: np.ndarray | None = None, show: Show | None = None
    ) -> Generated:
        """Draw images, or complete the lower half of the first images of `images`, and write them to one PNG file.

        The request has no `prompt` and no `length`. `images` are uint8 (N, H, W, C). Samples are as of `ByteTask.draw`.
        """
        self.check_request(request, ("prompt", "length"), ".png", same_prompt=images is None)
        if images is not None and request.num_samples > len(images):
            raise ValueError(
                f"`num_samples` must be at most the {len(images)} images to complete. Received: {request.num_samples}."
            )

        def prompts(indices):
            if images is None:
                return [np.zeros(0, np.int32)] * len(indices)
            return list(_upper_halves(self.codec, images[[index % len(images) for index in indices]]))

        def write(samples):
            if request.path is not None:
                with atomic_file(request.path) as temporary:
                    temporary.write_bytes(encode_png(draw_samples(self.codec, samples, images)))

        samples = self.draw(model, request, prompts, self.codec.length, write, show)
        return Generated(samples, "\n".join(self.describe_samples(samples)), request.path)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> ExportTest:
        tsa.export.export_images(model, path, self.codec, self.config.data.batch_size, jit_compile, weight_dtype)
        grey = np.full((1, *self.codec.shape), GREY, np.uint8).tolist()
        text = "a grey image has {bits_per_dim:.4f} bits per dimension"
        return ExportTest("score", {"images": grey}, lambda scores: text.format(**scores))


def _upper_halves(codec, images):
    """Return the ids of the upper halves of images (N, H, W, C), int32 (N, T)."""
    return codec.encode(images)[:, : codec.num_ids_above(codec.height // 2)]


def draw_samples(
    codec: tsa.data.ImageCodec, samples: Sequence[dict[str, Any]], images: np.ndarray | None = None
) -> np.ndarray:
    """Draw the samples of `Task.draw_images` as a grid, uint8 (height, width, 3). Missing bytes are grey.

    If `images` were completed, the upper half of the original is above each sample, and the original is below.
    """
    drawn = _decode_partial(codec, [sample["token_ids"] for sample in samples])
    parts = [drawn]
    if images is not None:
        originals = np.asarray(images[: len(samples)])
        parts = [_decode_partial(codec, _upper_halves(codec, originals)), drawn, originals]
    return draw_grid([part[begin : begin + COLUMNS] for begin in range(0, len(drawn), COLUMNS) for part in parts])


def _decode_partial(codec, sequences):
    """Decode sequences of ids that may be shorter than an image."""
    ids = np.full((len(sequences), codec.length), GREY + 1, np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    return codec.decode(ids)


def draw_grid(rows: Sequence[Any]) -> np.ndarray:
    """Draw a grid of images, uint8 (H, W, C) of one shape, as uint8 (height, width, 3). Small images are magnified."""
    height, width = rows[0][0].shape[:2]
    scale = max(1, -(-MIN_SIZE // max(height, width)))
    size = height * scale + MARGIN, width * scale + MARGIN
    picture = np.full((MARGIN + len(rows) * size[0], MARGIN + max(map(len, rows)) * size[1], 3), 255, np.uint8)
    for row_index, row in enumerate(rows):
        for column, image in enumerate(row):
            top, left = MARGIN + row_index * size[0], MARGIN + column * size[1]
            large = np.repeat(np.repeat(_as_rgb(image), scale, axis=0), scale, axis=1)
            picture[top : top + height * scale, left : left + width * scale] = large
    return picture


def _as_rgb(image):
    """Return an image (H, W, C) with 3 channels: grey from 1 or 2 channels, otherwise the first 3."""
    return image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)


def draw_attention(model: Any, codec: tsa.data.ImageCodec, image: np.ndarray) -> np.ndarray:
    """Draw the attention of one pixel, uint8 (height, width, 3): one row per block, one column per head.

    The image, uint8 (H, W, C), is darkened. Yellow marks attention weights, relative to the largest weight of the head.
    Red marks the query pixel in the middle of the lower half.
    """
    pixel = codec.height * 3 // 4, codec.width // 2
    rows = []
    for weights in tsa.analysis.pixel_attention(model, codec, image, pixel):
        shares = weights / np.maximum(weights.max(axis=(1, 2), keepdims=True), 1e-9)
        mixed = (1 - shares[..., None]) * 0.5 * _as_rgb(image) + shares[..., None] * np.array(YELLOW)
        heads = np.round(mixed).astype(np.uint8)
        heads[:, pixel[0], pixel[1]] = RED
        rows.append(heads)
    return draw_grid(rows)
