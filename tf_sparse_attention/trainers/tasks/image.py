"""The task of images: a language model of the bytes of their channels, one after the other."""

import functools
import pathlib
from typing import Any, ClassVar

import keras
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import sampling
from tf_sparse_attention.trainers.tasks import image_pictures
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask, ByteValidation
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names
from tf_sparse_attention.trainers.tasks.task import Examples, Generated, Request, Show, Trial

SAMPLES, COMPLETIONS = "samples.png", "completions.png"
NUM_SHOWN = 4  # images that are drawn, and that are completed, for TensorBoard


class Validation(ByteValidation):
    """Scores images, and draws some; `data` are uint8 (N, H, W, C)."""

    metric, items = "bits_per_dim", "images"

    def batches(self) -> dict[str, tsa.data.Batches]:
        """Returns the images, or the first of them."""
        size = self.task.config.data.batch_size
        return {"": tsa.data.image_evaluation_batches(self.data, self.task.codec, size, self.limit)}

    def num_items(self) -> int:
        return len(self.data)

    def examples(self) -> Examples:
        """Returns images that the model draws and completes, what a pixel attends to, and the use of clusters."""
        task, first, drawn = self.task, np.asarray(self.data[:NUM_SHOWN]), {}
        drawn["what a pixel attends to"] = image_pictures.attention_picture(self.model, task.codec, first[0])
        for name, given in (("samples", None), ("completions", first)) if self.can_draw() else ():
            samples = task.draw_images(self.model, Request(num_samples=len(first)), given).samples
            drawn[name] = image_pictures.picture_of_samples(task.codec, samples, given)
        shown = self.clusters.examples(task.codec.encode(first[0]))
        return shown._replace(pictures=drawn | shown.pictures)


class Task(ByteTask):
    """A language model of images; see `trainers.tasks.task.Task`."""

    codec_class = tsa.data.ImageCodec
    settings: ClassVar[Names] = {
        "data": ("image_shape", "image_order", "image_block", "use_flips"),
        "model": LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": SAMPLING,
    }
    found_in = "a folder of images or a file NAME.npz"
    validation = Validation

    @functools.cached_property
    def source(self) -> tsa.data.ImageSource:
        """The images that `config.data` names."""
        return tsa.data.open_images(image_shape=self.config.data.image_shape or None, **self.source_options())

    def make_codec(self) -> tsa.data.ImageCodec:
        """Returns the codec of the images that `config.data` names."""
        data = self.config.data
        block = tuple(data.image_block) or None
        return tsa.data.ImageCodec(*self.source.shape, order=data.image_order, block_shape=block)

    def open_split(self, split: str) -> Any:
        """Returns the images of a split, uint8 (N, H, W, C), on the disk."""
        images, codec = self.source.array(split), self.codec
        if self.config.data.sequence_length != codec.length:
            raise ValueError(
                f"`config.data.sequence_length` must be {codec.length}, the bytes of an image of {codec.shape}. "
                f"Received: sequence_length={self.config.data.sequence_length}."
            )
        if images.shape[1:] != codec.shape:
            raise ValueError(
                f"`config.data` must have images of the shape {codec.shape}, which the model is for. "
                f"Received: {self.source.name} of {images.shape[1:]}."
            )
        return images

    def training_batches(self) -> tsa.data.Batches:
        """Returns the images of the training split."""
        data, images = self.config.data, self.open_split(self.config.data.train_split)
        return tsa.data.image_batches(images, self.codec, data.batch_size, self.config.seed, data.use_flips)

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel` of 257 ids, see `components.make_model`.

        Raises:
            ValueError: For one whose positions do not fit the order of the bytes.
        """
        model: Any = super().make_model()
        grid = model.backbone.grid_embedding
        if grid is not None and tuple(grid.grid) != self.codec.grid:
            raise ValueError(
                f"`config.model.grid` must be {list(self.codec.grid)}, the axes of these images in their order. "
                f"Received: grid={list(grid.grid)}."
            )
        return model

    def generate(self, model: Any, request: Request, show: Show | None = None) -> Generated:
        """Draws images, or completes those of the split `request.complete`, and writes a PNG; see `draw_images`."""
        images = None if request.complete is None else self.open_split(request.complete)
        path = sampling.output_path(request.path, SAMPLES if images is None else COMPLETIONS)
        return self.draw_images(model, request._replace(path=path), images, show)

    def draw_images(
        self, model: Any, request: Request, images: np.ndarray | None = None, show: Show | None = None
    ) -> Generated:
        """Draws whole images, or completes some of which the upper half is given, and writes a PNG of them.

        Args:
            model: the model.
            request: its `prompt` and `length` have to be None.
            images: uint8 (N, H, W, C), of which the first are completed. Default: None, whole images are drawn.
            show: function of all samples so far, called whenever they grow. Default: None.

        Returns:
            `Generated`, whose samples are as those of `ByteTask.draw`.

        Raises:
            ValueError: For a request that does not suit images, or more of them than there are.
        """
        self.check_request(request, ("prompt", "length"), ".png", same_prompt=images is None)
        if images is not None and request.num_samples > len(images):
            raise ValueError(
                f"`num_samples` must be at most the {len(images)} images to complete. Received: {request.num_samples}."
            )

        def prompts(numbers):
            if images is None:
                return [np.zeros(0, np.int32)] * len(numbers)
            chosen = images[[number % len(images) for number in numbers]]
            return list(self.codec.encode(chosen)[:, : image_pictures.num_given(self.codec)])

        def write(samples):
            if request.path is not None:
                picture = image_pictures.picture_of_samples(self.codec, samples, images)
                image_pictures.write_png(request.path, picture)

        samples = self.draw(model, request, prompts, self.codec.length, write, show)
        return Generated(samples, "\n".join(self.describe_samples(samples)), request.path)

    def export(self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None) -> Trial:
        """Writes what `export_images` does."""
        tsa.export.export_images(model, path, self.codec, self.config.data.batch_size, jit_compile, weight_dtype)
        grey = np.full((1, *self.codec.shape), image_pictures.GREY, np.uint8).tolist()
        return Trial(
            "score", {"images": grey}, lambda found: f"a grey image has {found['bits_per_dim']:.4f} bits per dimension"
        )
