"""The scores of images and of sound, every byte once, and what TensorBoard shows of clusters."""

import math
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging

import tf_sparse_attention as tsa
from tf_sparse_attention.trainers.shared import illustrations, scoring, workdir
from tf_sparse_attention.trainers.shared.evaluation_run import EvaluationRun
from tf_sparse_attention.trainers.shared.resumable_sums import Progress
from tf_sparse_attention.trainers.tasks.parts import Shown

LABELS = {"bits_per_dim": "bits per dimension", "bits_per_byte": "bits per byte"}  # of metrics


class Validation:
    """Base of what scores the validation split and shows what a model is like.

    A subclass has `metric`, the name of the bits per byte; `make_batches(most)`, the batches to score, of at most so
    many rows; `counts()`, numbers by name for the file of scores, the first of the items; and `show()`.

    Args:
        task: a `ByteTask`.
        model: its model.
        data: what `task.open_split` returned.
        execution: arguments of `keras.Model.compile`.
    """

    metric: ClassVar[str]

    def __init__(self, task: Any, model: Any, data: Any, execution: dict[str, Any]) -> None:
        self.task, self.model, self.data = task, model, data
        self._scorer = scoring.make_scorer(model, execution, task.config.data.batch_size)
        self._health: tsa.analysis.Health | None = None  # the report before, from which drift is measured

    def make_batches(self, most: int | None) -> tsa.data.Batches:
        """Return the batches to score, of at most `most` rows. None: of all."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Returns numbers of the data by name."""
        raise NotImplementedError

    def score(self, devices: Any, callbacks: Sequence[keras.callbacks.Callback]) -> dict[str, float]:
        """Returns the loss in nats a byte, as that of training, and the same in bits."""
        sums = self.sums(devices, self.task.config.train.evaluation_windows or None, callbacks=callbacks)
        loss = sums["nats"] / max(sums["tokens"], 1)
        return {"loss": loss, self.metric: loss / math.log(2)}

    def sums(self, devices: Any, most: int | None = None, **options: Any) -> dict[str, float]:
        """Returns the nats and the bytes; `options` as for `scoring.sum_batches`."""
        return scoring.sum_batches(self._scorer, devices, self.make_batches(most), **options)

    def show_health(self, ids: np.ndarray, pictures: dict[str, Any]) -> Shown:
        """Returns the use of clusters on ids (T,), and these and other pictures."""
        texts, scalars = {}, {}
        self._health = illustrations.health_of(self.model, ids, self._health)
        if self._health is not None:
            texts["health"] = str(self._health)
            pictures = pictures | dict(illustrations.cluster_pictures(self._health))
            scalars = illustrations.health_scalars(self._health)
        return Shown(scalars, texts, pictures)

    def can_draw(self) -> bool:
        """Returns whether the model draws samples in less than hours; says once why not."""
        reason = self.model.cache_unsupported_reason
        if reason is not None:
            logging.log_first_n(logging.INFO, "No %s are drawn while training: %s.", 1, self.task.items, reason)
        return reason is None


def evaluate(task: Any, folder: str | os.PathLike, split: str) -> dict[str, Any]:
    """Scores the model in a work folder and writes the scores there.

    Args:
        task: a `ByteTask`.
        folder: the work folder.
        split: name of the split, or a part of one in the syntax of TFDS.

    Returns:
        Dictionary: "split", "data", "looks_ahead" (True, where heads of the model do), the counts of the task's
        `Validation`, "bytes", "nats", its metric, "seconds", "backend", and "path", the file they were written to.
    """
    data = task.open_split(split)
    run = EvaluationRun(folder, split, task.config, task.source)
    with run.devices.scope():
        model = workdir.load_model(folder)
        model.shrink_windows()
        validation = task.scores_class(task, model, data, run.execution)
        sums = validation.sums(run.devices, partial=run.resumable_sums(), progress=Progress)
    ahead = {} if model.backbone.causal_selection else {"looks_ahead": True}
    result = {
        "split": split,
        "data": task.source.name,
        **ahead,
        **validation.counts(),
        "bytes": int(sums["tokens"]),
        "nats": sums["nats"],
        validation.metric: sums["nats"] / math.log(2) / sums["tokens"],
        "seconds": sums["seconds"],
        "backend": keras.backend.backend(),
    }
    return run.write(result)


def as_text(scores: dict[str, Any], items: str, kind: type[Validation]) -> str:
    """Returns scores as text, a line each; `items` is what they are of, `kind` the class that has their metric."""
    rows = [
        (items, f"{scores['data']}, {scores['split']}: {scores[items]}"),
        *([("note", f"heads look ahead: no likelihood of the {items}")] if scores.get("looks_ahead") else []),
        ("bytes", str(scores["bytes"])),
        (LABELS[kind.metric], f"{scores[kind.metric]:.4f}"),
        ("seconds", f"{scores['seconds']:.1f}"),
    ]
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
