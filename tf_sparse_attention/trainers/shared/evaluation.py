"""Scores of a model on a split, for validation during training and for `tsa-evaluate`."""

import contextlib
import copy
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import ml_collections
import numpy as np
from absl import logging
from keras import ops

from tf_sparse_attention.atomic_files import write_json
from tf_sparse_attention.data import Batches
from tf_sparse_attention.models import Model, StatefulModel
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import components, workdir
from tf_sparse_attention.trainers.shared.devices import choose_devices
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Examples, check_read, missing_member

BATCHES_PER_SAVE = 128
SECONDS_BETWEEN_LINES = 30


class Validation:
    """Base class of the scores of a task's model on a split.

    A subclass defines `columns`, `batches`, `score_rows`, `metrics` and `describe`. It can override `totals`, which
    sums the columns. `details` adds results, and `examples` adds examples for TensorBoard.

    Attributes:
        task: a `Task`.
        model: model of the task, not compiled. A subclass can replace it by a variant.
        split: name of the split.
        limit: maximum number of windows, texts or images to score, evenly spaced. Default: None, all.
        variant: name of this variant in the file name of the scores. Default: None.
        columns: names of the scores of each row.
    """

    columns: ClassVar[tuple[str, ...]]
    variant: str | None = None

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        self.task, self.model, self.split, self.limit = task, model, split, limit

    def batches(self) -> dict[str, Batches]:
        """Return batches by name. Each name scores all rows of the split once. A single name is ""."""
        raise NotImplementedError

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        """Return a tensor (rows,) for each of `columns`, from a batch. This method is compiled.

        `model` is the model, or a `StatefulModel` around a model with segment memory.
        """
        raise NotImplementedError

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the sums over rows, float64 (rows, columns), by name: numbers or arrays. There can be 0 rows.

        By default, the sum of each column.
        """
        return dict(zip(self.columns, rows.sum(axis=0), strict=True))

    def metrics(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Compute the scores by name, including "loss". Training reports the same scores."""
        raise NotImplementedError

    def details(self, run: "EvaluationRun", scores: dict[str, Any]) -> dict[str, Any]:
        """Return additional results, such as counts of the data. `scores` has the results of `totals` and `metrics`."""
        return {}

    def examples(self) -> Examples:
        return Examples()

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        """Return the lines of an evaluation, pairs of a name and a text. A name that ends in a newline is a heading.

        The report adds the data and split before the text of the first line, which is empty or begins with ": ".
        """
        raise NotImplementedError


class TokenValidation(Validation):
    """Base class of scores in nats per token, for models that have targets as inputs and return their nats."""

    columns = ("nats", "tokens")

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        nats = ops.cast(model({**inputs, "targets": targets}, training=False), "float32")
        return ops.sum(nats * weights, axis=-1), ops.sum(weights, axis=-1)

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        return {"nats": rows[:, 0].sum(), "tokens": int(rows[:, 1].sum())}


def perplexity(nats: float, count: float) -> float | None:
    """Return exp(nats / count), or None if it is too large for a float."""
    return math.exp(nats / count) if 0 <= nats < 700 * count else None


class Scorer(Model):
    """Model with `predict` for the scores of a `Validation`, float32 (rows, columns)."""

    def __init__(self, validation: Validation, batch_size: int) -> None:
        super().__init__(name="scorer")
        self.model = components.with_memory(validation.model, batch_size)
        self._score_rows, self._columns = validation.score_rows, validation.columns
        self.built = True

    def call(self, batch: dict[str, Any]) -> Any:
        columns = self._score_rows(self.model, batch["inputs"], batch["targets"], batch["weights"])
        shapes = [tuple(column.shape) for column in columns]
        if len(shapes) != len(self._columns) or any(len(shape) != 1 for shape in shapes):
            raise ValueError(
                f"`score_rows` must return a tensor (rows,) for each of {', '.join(self._columns)}. "
                f"Received: tensors of shapes {shapes}."
            )
        return ops.stack([ops.cast(column, "float32") for column in columns], axis=-1)

    def predict_step(self, *arguments: Any, **keywords: Any) -> Any:
        result, distribution = super().predict_step(*arguments, **keywords), keras.distribution.distribution()
        if keras.backend.backend() != "jax" or distribution is None:
            return result
        rows, state = result
        # Copy rows to all devices, so that each process can read them.
        layout = keras.distribution.TensorLayout([None] * len(rows.shape), distribution.device_mesh)
        return keras.distribution.distribute_tensor(rows, layout), state


class Evaluator:
    """Evaluation loop of a `Validation`, in the scope of the devices. `execution`: arguments of `compile`."""

    def __init__(self, validation: Validation, devices: Any, execution: dict[str, Any]) -> None:
        for name in ("columns", "batches", "score_rows", "metrics", "describe"):
            if getattr(type(validation), name, None) is getattr(Validation, name, None):
                raise missing_member(type(validation), name)
        self.validation, self._devices = validation, devices
        self._scorer = Scorer(validation, validation.task.config.data.batch_size)
        self._scorer.compile(**execution)

    def scores(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> dict[str, float]:
        """Compute the scores by name; for named batches "NAME/SCORE". Scores that are None are omitted."""
        scores: dict[str, float] = {}
        for name, batches in self.validation.batches().items():
            metrics = _metrics(self.validation, self.totals(batches, callbacks))
            prefix = f"{name}/" if name else ""
            scores |= {f"{prefix}{key}": value for key, value in metrics.items() if value is not None}
        return scores

    def totals(
        self,
        batches: Batches,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        partial: "ResumableSums | None" = None,
        progress: "Progress | None" = None,
    ) -> dict[str, Any]:
        """Compute the totals of all batches and the "seconds" of computation, as plain data.

        With `partial`, an interrupted evaluation resumes.
        """
        count, chunk = int(batches.num_batches or 0), BATCHES_PER_SAVE
        if isinstance(self._scorer.model, StatefulModel):
            # Segment memory is not saved: an evaluation cannot resume in the middle of the text.
            self._scorer.model.reset_state()
            chunk, partial = max(1, count), None
        first, sums = (0, None) if partial is None else partial.load()
        if sums is None:
            no_rows = np.zeros((0, len(self.validation.columns)))
            sums = _add_totals({}, {**self.validation.totals(no_rows), "seconds": 0.0})
        if progress is not None:
            callbacks = [*callbacks, progress]
        inputs = batches.map(lambda *batch: (dict(zip(("inputs", "targets", "weights"), batch, strict=True)),))
        while first < count:
            begin, steps = time.perf_counter(), min(chunk, count - first)
            if progress is not None:
                progress.begin(first)
            part = self._devices.dataset(inputs, first, first + steps)
            rows = self._scorer.predict(part, steps=steps, verbose=0, callbacks=callbacks)
            totals = self.validation.totals(np.asarray(rows, np.float64))
            sums = _add_totals(sums, {**totals, "seconds": time.perf_counter() - begin})
            first += steps
            if partial is not None:
                partial.save(first, sums)
        return sums


def _metrics(validation, totals):
    """Return the metrics of a `Validation`, which include "loss"."""
    metrics = validation.metrics(totals)
    if "loss" not in metrics:
        raise ValueError(f"`metrics` must return 'loss' among others. Received: {', '.join(metrics)}.")
    return metrics


def _add_totals(sums, totals):
    """Return sums plus totals, as plain data."""
    return {name: np.add(sums.get(name, 0), total).tolist() for name, total in totals.items()}


def evaluate(
    folder: str | os.PathLike, split: str = "test", changes: ml_collections.ConfigDict | None = None
) -> dict[str, Any]:
    """Score the model of a run on a split, and write the scores to the run directory.

    Memory does not grow with the data. After an interruption, the next call resumes the evaluation.

    Args:
        folder: run directory.
        split: name of a split, or of a part in the syntax of TFDS. Default: "test".
        changes: `base.overridable_settings()` with the settings to override. Default: None, no changes.

    Returns:
        Dictionary with "task", "split", "data" (name of the data), the results of the task's `Validation` (in nested
        dictionaries for named batches), "not_causal" (True if heads of a causal model are not causal), "seconds",
        "backend", "settings" (of the batches) and "path" (file of the scores).

    Raises:
        ValueError: If the model or the split does not exist, a setting is invalid, or the task ignores a change.
    """
    task = registry.load_task(folder, with_overrides(workdir.load_config(folder), changes))
    devices = choose_devices(task.config)
    execution = devices.execution(task.config.train.jit_compile, task.config.train.steps_per_execution)
    with devices.scope():
        model: Any = workdir.load_model(folder)
        model.shrink_windows()
        validation = task.validation(task, model, split)
        run, evaluator = EvaluationRun(folder, validation, devices), Evaluator(validation, devices, execution)
        scores: dict[str, Any] = {}
        seconds = 0.0
        for name, batches in validation.batches().items():
            progress = Progress(int(batches.num_batches or 0))
            # Several processes could resume after different numbers of batches.
            partial = run.resumable_sums(name) if devices.is_single_process else None
            totals = evaluator.totals(batches, partial=partial, progress=progress)
            seconds += totals.pop("seconds")
            metrics = {**totals, **_metrics(validation, totals)}
            scores |= {name: metrics} if name else metrics
    backbone: Any = getattr(model, "backbone", None)
    is_causal = not getattr(backbone, "causal", False) or backbone.causal_selection
    result = {"task": task.config.task, "split": split, "data": task.source.name, **scores}
    result |= {} if is_causal else {"not_causal": True}
    result |= {**validation.details(run, scores), "seconds": seconds, "backend": keras.backend.backend()}
    return run.write({**result, "settings": run.settings})


def as_text(scores: dict[str, Any]) -> str:
    """Format the scores of `evaluate` as text, one line per score."""
    validation = registry.find_task_class(scores["task"]).validation
    note = [("note", "some heads are not causal: scores are not likelihoods")] if scores.get("not_causal") else []
    (name, text), *rows = validation.describe(scores)
    rows = [(name, f"{scores['data']}, {scores['split']}{text}"), *note, *rows]
    rows = [*rows, ("seconds", f"{scores['seconds']:.1f}")]
    return "\n".join((name if name.endswith("\n") else f"{name:<22}") + text for name, text in rows)


def number(value: float | None) -> str:
    """Format a number; None means too large for a float."""
    return "too large for a float" if value is None else f"{value:.5g}"


def with_overrides(
    config: ml_collections.ConfigDict, changes: ml_collections.ConfigDict | None = None
) -> ml_collections.ConfigDict:
    """Return a copy of a configuration with the changes, see `evaluate`.

    A new `data.tfds` or `data.path` resets the other settings of the source, except `data_dir`.
    """
    config = copy.deepcopy(config)
    if changes is None:
        return config
    check_read(changes, config.task, registry.find_task_class(config.task).settings)
    if changes.data.tfds is not None or changes.data.path is not None:
        defaults = base.get_config().data
        for name in set(base.SOURCE_SETTINGS) - {"data_dir"}:
            config.data[name] = defaults[name]
    for section in base.OVERRIDABLE:
        with config[section].unlocked(), config[section].ignore_type():
            config[section].update(components.set_values(changes[section]))
    return config


class EvaluationRun:
    """Files of one evaluation in a run directory: the scores in `path`, and partial sums to resume it.

    `identity` is plain data that identifies model, data, split, variant and settings of batches.
    """

    def __init__(self, folder: str | os.PathLike, validation: Validation, devices: Any) -> None:
        source, split, variant = validation.task.source, validation.split, validation.variant
        self.folder, self.devices = folder, devices
        self.path = workdir.result_path(folder, "evaluation.json", split, source, variant)
        self.settings = {name: validation.task.config.data[name] for name in base.WINDOW_SETTINGS}
        self.identity = [source.fingerprint, split, workdir.model_version(folder), variant, self.settings]
        self._partial: list[pathlib.Path] = []

    def resumable_sums(self, name: str = "", settings: Any = None) -> "ResumableSums":
        """Return partial sums that `write` deletes. `settings` is plain data with further settings of these sums."""
        path = self.path.with_suffix(".".join(["", *([name] if name else []), "partial.json"]))
        self._partial.append(path)
        return ResumableSums(path, [*self.identity, settings])

    def write(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Write the scores in the chief process, delete partial sums, and return the scores with "path", their file."""
        scores = {**scores, "path": str(self.path)}
        if self.devices.is_chief:
            write_json(self.path, scores)
            for path in self._partial:
                path.unlink(missing_ok=True)
        return scores


class ResumableSums:
    """File with the sums of an unfinished evaluation. Sums with another `identity`, plain data, are ignored."""

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self.path, self._identity = path, json.loads(json.dumps(identity))

    def load(self) -> tuple[int, dict[str, Any] | None]:
        """Return the number of finished batches and their sums by name; 0 and None without a valid file."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if saved["identity"] == self._identity:
                batches, sums = saved["batches"], saved["sums"]
                logging.info("Resuming after %d batches from %s.", batches, self.path)
                return batches, sums
        return 0, None

    def save(self, batches: int, sums: dict[str, Any]) -> None:
        """Write the number of finished batches and their sums."""
        write_json(self.path, {"identity": self._identity, "batches": batches, "sums": sums})


class Progress(keras.callbacks.Callback):
    """Callback that shows the progress of several calls of `predict`: a bar on a terminal, lines in a log."""

    def __init__(self, num_batches: int) -> None:
        super().__init__()
        self._num_batches = num_batches
        self._bar = keras.utils.Progbar(num_batches, unit_name="batch", interval=0.2) if sys.stderr.isatty() else None
        self._first: int | None = None
        self._done = 0
        self._start_time = self._last_log = time.monotonic()

    def begin(self, first: int) -> None:
        """Set the number of finished batches before the next call of `predict`."""
        self._first = first if self._first is None else self._first
        self._done = first

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        done = self._done + batch + 1
        if self._bar is not None:
            self._bar.update(done)
        elif time.monotonic() - self._last_log > SECONDS_BETWEEN_LINES:
            self._last_log, first = time.monotonic(), self._first or 0
            seconds = round((self._last_log - self._start_time) / (done - first) * (self._num_batches - done))
            logging.info("batch %d/%d, %d:%02d left", done, self._num_batches, seconds // 60, seconds % 60)
