"""The task of images: a language model of the bytes of their channels, one after the other."""

import functools
import json
import os
from collections.abc import Callable
from typing import Any, Self

import keras
import ml_collections
import numpy as np

import tf_sparse_attention as tsa
from tf_sparse_attention.export import export_images
from trainers.shared import components, evaluation, exporting, workdir
from trainers.shared.files import write_json
from trainers.shared.overrides import overridable_settings
from trainers.tasks import image_samples, image_scores
from trainers.tasks.parts import Generated, Request, TrainingData
from trainers.tasks.settings import check_settings

CODEC = "codec.json"
# Settings that images do not have.
FOREIGN: dict[str, tuple[str, ...]] = {
    "data": ("mask_rate", "overlap", "text_feature", "vocabulary", "source_field", "target_field"),
    "model": ("memory_length", "cross_attention", "encoder_attention", "num_encoder_layers"),
}


class Task:
    """A language model of images; see `trainers.tasks.registry`.

    Args:
        config: the `ml_collections.ConfigDict` of the run.
        codec: the `ImageCodec` of its images. None: that of the data, opened when it is needed.
    """

    def __init__(self, config: ml_collections.ConfigDict, codec: tsa.data.ImageCodec | None = None) -> None:
        _check(config)
        self.config, self._codec = config, codec

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Returns the task of a work folder."""
        path = workdir.open_workdir(folder) / CODEC
        if not path.exists():
            raise ValueError(f"`workdir` must hold {CODEC}, which `trainers.train` writes. Received: workdir={folder}.")
        saved = json.loads(path.read_text(encoding="utf-8"))
        return cls(workdir.load_config(folder), tsa.data.ImageCodec.from_config(saved))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the codec into a work folder."""
        write_json(workdir.open_workdir(folder) / CODEC, self.codec.get_config())

    def check(self, folder: str | os.PathLike) -> None:
        """Raises a `ValueError` if a work folder has images of another shape, or in another order."""
        path = workdir.open_workdir(folder) / CODEC
        if path.exists() and type(self).load(folder).codec.get_config() != self.codec.get_config():
            raise ValueError(
                "`config.data` must have images as those of the checkpoint in the work folder; start a new run with "
                f"another --workdir. Received: {self.codec.get_config()}."
            )

    @functools.cached_property
    def source(self) -> tsa.data.ImageSource:
        """The images that `config.data` names."""
        given = components.set_values(self.config.data)
        options = {name: given[name] for name in ("tfds", "path", "local_dir", "data_dir") if name in given}
        return tsa.data.open_images(image_shape=given["image_shape"] or None, **options)

    @property
    def codec(self) -> tsa.data.ImageCodec:
        """The codec of the images.

        Raises:
            ValueError: If `config.data` has another length than that of an image.
        """
        if self._codec is None:
            data = self.config.data
            block = tuple(data.image_block) or None
            self._codec = tsa.data.ImageCodec(*self.source.shape, order=data.image_order, block_shape=block)
        if self.config.data.sequence_length != self._codec.length:
            raise ValueError(
                f"`config.data.sequence_length` must be {self._codec.length}, the bytes of an image of "
                f"{self._codec.shape}. Received: sequence_length={self.config.data.sequence_length}."
            )
        return self._codec

    def open_images(self, split: str) -> Any:
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
        images = self.open_images(data.train_split)
        batches = tsa.data.ImageBatches(images, codec, data.batch_size, self.config.seed, data.use_flips)
        return TrainingData(source, source.fingerprint, batches, data.batch_size * codec.length)

    def make_model(self) -> keras.Model:
        """Returns a `LanguageModel` of 257 ids, see `components.make_model`.

        Raises:
            ValueError: For one whose positions do not fit the order of the bytes.
        """
        model = components.make_model(self.config, self.codec.vocabulary_size)
        grid = model.backbone.grid_embedding
        if grid is not None and tuple(grid.grid) != self.codec.grid:
            raise ValueError(
                f"`config.model.grid` must be {list(self.codec.grid)}, the axes of these images in their order. "
                f"Received: grid={list(grid.grid)}."
            )
        return model

    def make_training_model(self, model: Any) -> keras.Model:
        """Returns the model itself."""
        return model

    def make_loss(self) -> keras.losses.Loss:
        """Returns the mean nats a byte."""
        return tsa.models.language_model_loss()

    def make_validation(self, model: Any, execution: dict[str, Any]) -> image_scores.Validation:
        """Returns the `Validation` of a model; `execution` has arguments of `keras.Model.compile`."""
        return image_scores.Validation(self, model, self.open_images(self.config.data.validation_split), execution)

    def evaluate(
        self, folder: str | os.PathLike, split: str, overrides: ml_collections.ConfigDict | None = None
    ) -> dict[str, Any]:
        """Scores every byte of the images of a split once, given those before it, and writes the scores.

        An evaluation that was killed resumes when it is started again.

        Args:
            folder: the work folder.
            split: name of the split, or a part of one in the syntax of TFDS.
            overrides: `overrides.overridable_settings()` with the settings to override. None: none.

        Returns:
            Dictionary: "split", "data", "looks_ahead" (True, where heads of the model do), "images", "bytes", "nats",
            "bits_per_dim", "seconds", "backend", and "path", the file they were written to.
        """
        config = evaluation.with_overrides(self.config, overrides or overridable_settings())
        return image_scores.evaluate(type(self)(config, self._codec), folder, split)

    def as_text(self, scores: dict[str, Any]) -> str:
        """Returns the scores as text, a line each."""
        return image_scores.as_text(scores)

    def export(self, folder: str | os.PathLike, jit_compile: bool, weight_dtype: str | None) -> dict[str, Any]:
        """Writes the SavedModel of a work folder into it, see `export_images`, and scores a grey image with it."""
        saved_model, codec = workdir.open_workdir(folder) / exporting.SAVED_MODEL, self.codec
        model: Any = workdir.load_model(folder)
        path = export_images(model, saved_model, codec, self.config.data.batch_size, jit_compile, weight_dtype)
        grey = np.full((1, *codec.shape), image_samples.GREY, np.uint8)
        found = exporting.run_alone(path, "score", {"images": grey.tolist()})
        proof = f"a grey image has {found['bits_per_dim']:.4f} bits per dimension"
        return {"path": str(path), **found, "proof": proof}

    def generate(
        self,
        folder: str | os.PathLike,
        request: Request,
        show: Callable[[list[dict[str, Any]]], None] | None = None,
    ) -> Generated:
        """Draws images, or completes some, with the model of a work folder; see `image_samples.generate`."""
        folder = workdir.open_workdir(folder)
        images = None if request.complete is None else self.open_images(request.complete)
        path = request.path
        if path is None:
            path = folder / (image_samples.SAMPLES if images is None else image_samples.COMPLETIONS)
        painter = image_samples.Painter(workdir.load_model(folder), self.codec, self.config.generate.to_dict())
        return image_samples.generate(painter, images, request._replace(path=path), show)


def _check(config):
    """Raises a `ValueError` for settings that images do not have, and without data."""
    check_settings(config, {}, FOREIGN)
    if not config.model.causal:
        raise ValueError("`config.model.causal` must be True for task=image. Received: causal=False.")
    if config.data.tfds is None and config.data.path is None:
        raise ValueError(
            "`config.data.path` must be a folder of images or a file NAME.npz, or `config.data.tfds` the name of a "
            "data set of TFDS, for task=image. Received: neither."
        )
