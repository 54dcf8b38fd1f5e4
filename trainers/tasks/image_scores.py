"""The scores of images, every byte once, and what TensorBoard shows of a model of them."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from trainers.shared import illustrations, scoring, strategy, workdir
from trainers.shared.files import write_json
from trainers.shared.resumable_sums import Progress, ResumableSums
from trainers.tasks import image_samples
from trainers.tasks.parts import Request, Shown

NUM_SHOWN = 4  # images that are drawn, and that are completed, for TensorBoard


class Validation:
    """Scores the images of the validation split, and draws some.

    Args:
        task: a `trainers.tasks.image.Task`.
        model: its model.
        images: uint8 (N, H, W, C).
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, task: Any, model: Any, images: Any, execution: dict[str, Any]) -> None:
        self.task, self.model, self.images = task, model, images
        self._scorer = scoring.make_scorer(model, execution, task.config.data.batch_size)
        self._health: tsa.analysis.Health | None = None  # the report before, from which drift is measured

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a byte, as that of training, and bits per dimension."""
        sums = self.sums(devices, self.task.config.train.evaluation_windows or None, callbacks=callbacks)
        loss = sums["nats"] / max(sums["tokens"], 1)
        return {"loss": loss, "bits_per_dim": loss / math.log(2)}

    def sums(self, devices: Any, max_images: int | None = None, **options: Any) -> dict[str, float]:
        """Returns the nats and the bytes of images; `options` as for `scoring.sum_batches`."""
        count = len(self.images) if max_images is None else min(len(self.images), max_images)
        num_batches = -(-count // self.task.config.data.batch_size)
        return scoring.sum_batches(
            self._scorer, devices, functools.partial(self._batches, max_images), num_batches, **options
        )

    def _batches(self, max_images, first, count, **shard):
        sizes = self.task.codec, self.task.config.data.batch_size, max_images
        return tsa.data.image_evaluation_batches(self.images, *sizes, first, count, **shard)

    def show(self) -> Shown:
        """Returns images of the model's own, completed ones, what a pixel looks at, and the use of clusters."""
        codec = self.task.codec
        first = np.asarray(self.images[:NUM_SHOWN])
        pictures = {"what a pixel looks at": image_samples.attention_picture(self.model, codec, first[0])}
        pictures |= self._drawn(first)
        texts, scalars = {}, {}
        self._health = illustrations.health_of(self.model, codec.encode(first[0]), self._health)
        if self._health is not None:
            texts["health"] = str(self._health)
            pictures |= illustrations.cluster_pictures(self._health)
            scalars = illustrations.health_scalars(self._health)
        return Shown(scalars, texts, pictures)

    def _drawn(self, images):
        """Returns samples and completions as pictures by name; none of a model that would need hours for them."""
        reason = self.model.cache_unsupported_reason
        if reason is not None:
            logging.log_first_n(logging.INFO, "No images are drawn while training: %s.", 1, reason)
            return {}
        painter = image_samples.Painter(self.model, self.task.codec, self.task.config.generate.to_dict())
        request = Request(num_samples=len(images))
        return {
            name: image_samples.as_picture(painter, image_samples.generate(painter, given, request).samples, given)
            for name, given in (("samples", None), ("completions", images))
        }


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Returns the scores of the model in a work folder, see `Task.evaluate`, and writes them there."""
    config, source = task.config, task.source
    images = task.open_images(split)
    trained_on = workdir.load_source(folder)["fingerprint"]
    other = None if source.fingerprint == trained_on else source.name.replace("/", "-")
    path = workdir.evaluation_path(folder, split, other)
    identity = [source.fingerprint, split, workdir.model_version(folder), config.data.batch_size]
    partial = ResumableSums(path.with_suffix(".partial.json"), identity)
    devices = strategy.choose_devices(config)
    with devices.scope():
        execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
        model = workdir.load_model(folder)
        model.shrink_windows()
        validation = Validation(task, model, images, execution)
        resumable = partial if devices.is_single_process else None
        sums = validation.sums(devices, partial=resumable, progress=Progress)
    ahead = {} if model.backbone.causal_selection else {"looks_ahead": True}
    result = {
        "split": split,
        "data": source.name,
        **ahead,
        "images": len(images),
        "bytes": int(sums["tokens"]),
        "nats": sums["nats"],
        "bits_per_dim": sums["nats"] / math.log(2) / sums["tokens"],
        "seconds": sums["seconds"],
        "backend": keras.backend.backend(),
        "path": str(path),
    }
    if devices.is_chief:
        write_json(path, result)
        partial.remove()
    return result


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores as text, a line each."""
    rows = [
        ("images", f"{scores['data']}, {scores['split']}: {scores['images']}"),
        *([("note", "heads look ahead: no likelihood of the images")] if scores.get("looks_ahead") else []),
        ("bytes", str(scores["bytes"])),
        ("bits per dimension", f"{scores['bits_per_dim']:.4f}"),
        ("seconds", f"{scores['seconds']:.1f}"),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
