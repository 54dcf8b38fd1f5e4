"""The task of images: a language model of the bytes of their channels, one after the other."""

import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import workdir
from tf_sparse_attention.trainers.tasks import image_samples, image_scores
from tf_sparse_attention.trainers.tasks.byte_task import ByteTask
from tf_sparse_attention.trainers.tasks.parts import Generated, Request, TrainingData
from tf_sparse_attention.trainers.tasks.settings import LANGUAGE_MODEL, SAMPLING, Names


class Task(ByteTask):
    """A language model of images; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        codec: the `ImageCodec` of its images. None: that of the data, opened when it is needed.
    """

    items = "images"
    codec_class = tsa.data.ImageCodec
    settings: ClassVar[Names] = {
        "data": ("image_shape", "image_order", "image_block", "use_flips"),
        "model": LANGUAGE_MODEL,
        "train": ("evaluation_windows",),
        "generate": SAMPLING,
    }
    found_in = "a folder of images or a file NAME.npz"
    scores_class = image_scores.Validation

    @functools.cached_property
    def source(self) -> tsa.data.ImageSource:
        """The images that `config.data` names."""
        return tsa.data.open_images(image_shape=self.config.data.image_shape or None, **self.source_options())

    @property
    def codec(self) -> tsa.data.ImageCodec:
        """The codec of the images.

        Raises:
            ValueError: If `config.data` has another length than that of an image.
        """
        codec = super().codec
        if self.config.data.sequence_length != codec.length:
            raise ValueError(
                f"`config.data.sequence_length` must be {codec.length}, the bytes of an image of {codec.shape}. "
                f"Received: sequence_length={self.config.data.sequence_length}."
            )
        return codec

    def make_codec(self) -> tsa.data.ImageCodec:
        """Returns the codec of the images that `config.data` names."""
        data = self.config.data
        block = tuple(data.image_block) or None
        return tsa.data.ImageCodec(*self.source.shape, order=data.image_order, block_shape=block)

    def open_split(self, split: str) -> Any:
        """Returns the images of a split, uint8 (N, H, W, C), on the disk."""
        images = self.source.array(split)
        if images.shape[1:] != self.codec.shape:
            raise ValueError(
                f"`config.data` must have images of the shape {self.codec.shape}, which the model is for. "
                f"Received: {self.source.name} of {images.shape[1:]}."
            )
        return images

    def open_data(self) -> TrainingData:
        """Returns the images of the training split."""
        data, codec, source = self.config.data, self.codec, self.source
        images = self.open_split(data.train_split)
        batches = tsa.data.image_batches(images, codec, data.batch_size, self.config.seed, data.use_flips)
        return TrainingData(source, source.fingerprint, batches, data.batch_size * codec.length)

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

    def write_saved_model(
        self, model: Any, path: pathlib.Path, jit_compile: bool, weight_dtype: str | None
    ) -> pathlib.Path:
        """Writes what `export_images` does."""
        return tsa.export.export_images(model, path, self.codec, self.config.data.batch_size, jit_compile, weight_dtype)

    def plain_item(self) -> tuple[str, dict[str, Any]]:
        """Returns a grey image."""
        grey = np.full((1, *self.codec.shape), image_samples.GREY, np.uint8)
        return "a grey image", {"images": grey.tolist()}

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Draws images, or completes some, with the model of a work folder; see `image_samples.generate`."""
        folder = workdir.open_workdir(folder)
        images = None if request.complete is None else self.open_split(request.complete)
        path = request.path
        if path is None:
            path = folder / (image_samples.SAMPLES if images is None else image_samples.COMPLETIONS)
        painter = image_samples.Painter(workdir.load_model(folder), self.codec, self.config.generate.to_dict())
        return image_samples.generate(painter, images, request._replace(path=path), show)
