"""Scores a model on a split: what training reports of the validation split, and what `tsa-evaluate` writes."""

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
from tf_sparse_attention.trainers.shared import backbone_settings, components, overrides, workdir
from tf_sparse_attention.trainers.shared.devices import choose_devices
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.settings import check_read
from tf_sparse_attention.trainers.tasks.task import Examples

BATCHES_PER_SAVE = 128
SECONDS_BETWEEN_LINES = 30


class Validation:
    """Scores a model on a split. Base class; each task has a subclass.

    A subclass has `columns`, `batches`, `score_rows`, `figures` and `describe`. Where sums of columns are not enough it
    has `totals`. `details` and `examples` add to what is written and shown.

    Args:
        task: a `Task`.
        model: its model, not compiled.
        split: name of the split.
        limit: how many windows, texts or images to score at most, evenly spread. Default: None, all.

    Attributes:
        task, model, split, limit: as above. A subclass may replace `model` by a variant of it.
        variant: part of the name of the file of scores, for such a variant. Default: None.
        columns: names of the scores of a row of a batch.
    """

    columns: ClassVar[tuple[str, ...]]
    variant: str | None = None

    def __init__(self, task: Any, model: Any, split: str, limit: int | None = None) -> None:
        self.task, self.model, self.split, self.limit = task, model, split, limit

    def batches(self) -> dict[str, Batches]:
        """Returns the batches to score, each row once: by name, if the split is scored several times; else by ""."""
        raise NotImplementedError

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        """Returns a tensor (rows,) for each of `columns`. Is compiled.

        Args:
            model: what to call: the model, or a `StatefulModel` of one with segment memory.
            inputs, targets, weights: a batch.
        """
        raise NotImplementedError

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        """Returns what is added up over all rows, numbers or arrays by name. By default the sum of each column.

        Args:
            rows: float64 (rows, columns), possibly none.
        """
        return dict(zip(self.columns, rows.sum(axis=0), strict=True))

    def figures(self, totals: dict[str, Any]) -> dict[str, Any]:
        """Returns the scores by name, "loss" among them, which training reports too."""
        raise NotImplementedError

    def details(self, run: "EvaluationRun", scores: dict[str, Any]) -> dict[str, Any]:
        """Returns what an evaluation has beside totals and figures, such as numbers of the data. By default nothing.

        Args:
            run: the evaluation.
            scores: the totals and figures by name.
        """
        return {}

    def examples(self) -> Examples:
        """Returns what TensorBoard shows of the model. By default nothing."""
        return Examples()

    @staticmethod
    def describe(scores: dict[str, Any]) -> list[tuple[str, str]]:
        """Returns the lines of an evaluation, pairs of a name and a text. A heading ends in a newline."""
        raise NotImplementedError


class TokenValidation(Validation):
    """Scores each token in nats. Base class for models that return the nats of targets which they get as inputs."""

    columns = ("nats", "tokens")

    def score_rows(self, model: Any, inputs: Any, targets: Any, weights: Any) -> Sequence[Any]:
        nats = ops.cast(model({**inputs, "targets": targets}, training=False), "float32")
        return ops.sum(nats * weights, axis=-1), ops.sum(weights, axis=-1)

    def totals(self, rows: np.ndarray) -> dict[str, Any]:
        return {"nats": rows[:, 0].sum(), "tokens": int(rows[:, 1].sum())}


def perplexity(nats: float, count: float) -> float | None:
    """Returns exp(nats / count), or None if no float holds it."""
    return math.exp(nats / count) if 0 <= nats < 700 * count else None


class Scorer(Model):
    """Scores batches in a `predict`, which returns float32 (rows, columns).

    Args:
        validation: a `Validation`.
        batch_size: rows in a batch.
    """

    def __init__(self, validation: Validation, batch_size: int) -> None:
        super().__init__(name="scorer")
        self.model = components.with_memory(validation.model, batch_size)
        self._score_rows = validation.score_rows
        self.built = True

    def call(self, batch: dict[str, Any]) -> Any:
        columns = self._score_rows(self.model, batch["inputs"], batch["targets"], batch["weights"])
        return ops.stack([ops.cast(column, "float32") for column in columns], axis=-1)

    def predict_step(self, *arguments: Any, **keywords: Any) -> Any:
        result = super().predict_step(*arguments, **keywords)
        if keras.backend.backend() != "jax":
            return result
        rows, state = result
        return _readable_everywhere(rows), state


def _readable_everywhere(rows):
    """Returns rows with all of them in each process, where JAX has them on devices of several."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return rows
    layout = keras.distribution.TensorLayout([None] * len(rows.shape), distribution.device_mesh)
    return keras.distribution.distribute_tensor(rows, layout)


class Evaluator:
    """Runs a validation.

    Args:
        validation: a `Validation`.
        devices: from `devices.choose_devices`; in its scope.
        execution: arguments of `keras.Model.compile`.
    """

    def __init__(self, validation: Validation, devices: Any, execution: dict[str, Any]) -> None:
        self.validation, self._devices = validation, devices
        self._scorer = Scorer(validation, validation.task.config.data.batch_size)
        self._scorer.compile(**execution)

    def scores(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> dict[str, float]:
        """Returns the figures by name; those of named batches as "NAME/FIGURE". Those that are None are left out.

        Args:
            callbacks: Keras callbacks for `predict`; if one stops it, the result is invalid.
        """
        found: dict[str, float] = {}
        for name, batches in self.validation.batches().items():
            figures = self.validation.figures(self.totals(batches, callbacks))
            prefix = f"{name}/" if name else ""
            found |= {f"{prefix}{key}": value for key, value in figures.items() if value is not None}
        return found

    def totals(
        self,
        batches: Batches,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        partial: "ResumableSums | None" = None,
        progress: "Progress | None" = None,
    ) -> dict[str, Any]:
        """Returns the totals of all batches and the "seconds" that they took: plain data.

        Args:
            batches: `Batches` of `(inputs, targets, weights)`.
            callbacks: Keras callbacks for `predict`.
            partial: what a killed evaluation has left. Default: None, start at the beginning.
            progress: what shows how far the evaluation is. Default: None, nothing.
        """
        count, chunk = int(batches.num_batches or 0), BATCHES_PER_SAVE
        if isinstance(self._scorer.model, StatefulModel):
            # Segment memory is not saved: the text is read from the beginning, without interruption.
            self._scorer.model.reset_state()
            chunk, partial = max(1, count), None
        first, sums = (0, None) if partial is None else partial.load()
        if sums is None:
            nothing = np.zeros((0, len(self.validation.columns)))
            sums = _added({}, {**self.validation.totals(nothing), "seconds": 0.0})
        if progress is not None:
            callbacks = [*callbacks, progress]
        inputs = batches.map(_as_inputs)
        while first < count:
            begin, steps = time.perf_counter(), min(chunk, count - first)
            if progress is not None:
                progress.begin(first)
            part = self._devices.dataset(inputs, first, first + steps)
            rows = self._scorer.predict(part, steps=steps, verbose=0, callbacks=callbacks)
            totals = self.validation.totals(np.asarray(rows, np.float64))
            sums = _added(sums, {**totals, "seconds": time.perf_counter() - begin})
            first += steps
            if partial is not None:
                partial.save(first, sums)
        return sums


def _added(sums, totals):
    """Returns sums, plain data, with further ones."""
    return {name: np.add(sums.get(name, 0), total).tolist() for name, total in totals.items()}


def _as_inputs(inputs, targets, weights):
    return ({"inputs": inputs, "targets": targets, "weights": weights},)


def evaluate(
    folder: str | os.PathLike, split: str = "test", changes: ml_collections.ConfigDict | None = None
) -> dict[str, Any]:
    """Scores the model of a run folder on a split, everything once, and writes the scores there.

    Memory does not grow with the data. An evaluation that was killed resumes when it is started again.

    Args:
        folder: the run folder.
        split: name of the split, or a part of one in the syntax of TFDS. Default: "test".
        changes: `overrides.overridable_settings()` with the settings to override. Default: None, none.

    Returns:
        Dictionary: "task", "split", "data" (name of the data), the totals, figures and details of the task's
        `Validation`, those of named batches in a dictionary of that name, "not_causal" (True, where heads of a causal
        model are not), "seconds", "backend", "settings" (of the batches), and "path", the file that the scores were
        written to.

    Raises:
        ValueError: If there is no trained model or no such split, a setting is wrong, or the task ignores one of
            `changes`.

    Example:

    >>> scores = evaluate("runs/demo", "validation")
    >>> print(as_text(scores))
    """
    task = registry.load_task(folder, with_overrides(workdir.load_config(folder), changes))
    devices = choose_devices(task.config)
    execution = devices.execution(task.config.train.jit_compile, task.config.train.steps_per_execution)
    with devices.scope():
        model: Any = workdir.load_model(folder)
        model.shrink_windows()
        validation = task.validation(task, model, split)
        run, evaluator = EvaluationRun(folder, validation, devices), Evaluator(validation, devices, execution)
        found: dict[str, Any] = {}
        seconds = 0.0
        for name, batches in validation.batches().items():
            progress = Progress(int(batches.num_batches or 0))
            totals = evaluator.totals(batches, partial=run.resumable_sums(name), progress=progress)
            seconds += totals.pop("seconds")
            figures = {**totals, **validation.figures(totals)}
            found |= {name: figures} if name else figures
    backbone: Any = getattr(model, "backbone", None)
    is_causal = not getattr(backbone, "causal", False) or backbone.causal_selection
    result = {"task": task.config.task, "split": split, "data": task.source.name, **found}
    result |= {} if is_causal else {"not_causal": True}
    result |= {**validation.details(run, found), "seconds": seconds, "backend": keras.backend.backend()}
    return run.write({**result, "settings": run.settings})


def as_text(scores: dict[str, Any]) -> str:
    """Returns the scores of `evaluate` as readable text, a line each."""
    validation = registry.find_task_class(scores["task"]).validation
    note = [("note", "some heads are not causal: these are no likelihoods")] if scores.get("not_causal") else []
    (name, text), *rows = validation.describe(scores)
    rows = [(name, f"{scores['data']}, {scores['split']}{text}"), *note, *rows]
    rows = [*rows, ("seconds", f"{scores['seconds']:.1f}")]
    return "\n".join((name if name.endswith("\n") else f"{name:<22}") + text for name, text in rows)


def number(value: float | None) -> str:
    """Returns a number as text."""
    return "beyond any float" if value is None else f"{value:.5g}"


def with_overrides(
    config: ml_collections.ConfigDict, changes: ml_collections.ConfigDict | None = None
) -> ml_collections.ConfigDict:
    """Returns a copy of a configuration with other settings. Another text replaces all settings of the source.

    Args:
        config: that of the run. It is not changed.
        changes: `overrides.overridable_settings()` with the settings to override. Default: None, none.

    Raises:
        ValueError: If the task of the run ignores one of them.
    """
    config = copy.deepcopy(config)
    if changes is None:
        return config
    check_read(changes, config.task, registry.find_task_class(config.task).settings)
    if changes.data.tfds is not None or changes.data.path is not None:
        defaults = base.get_config().data
        for name in set(overrides.SOURCE_SETTINGS) - {"data_dir"}:
            config.data[name] = defaults[name]
    for section in overrides.SETTINGS:
        with config[section].unlocked(), config[section].ignore_type():
            config[section].update(backbone_settings.set_values(changes[section]))
    return config


class EvaluationRun:
    """One evaluation of the model in a run folder: where its scores go, and how it resumes.

    Scores on data other than the training data have a separate file, see `workdir.evaluation_path`.

    Args:
        folder: the run folder.
        validation: the `Validation`.
        devices: from `devices.choose_devices`.

    Attributes:
        folder, devices: as above.
        path: the `pathlib.Path` of the scores, for the data of the run WORKDIR/evaluation-SPLIT.json.
        settings: those of `config.data` about batches, a dictionary.
        identity: plain data that identifies model, data, split, variant and settings.
    """

    def __init__(self, folder: str | os.PathLike, validation: Validation, devices: Any) -> None:
        source, split, variant = validation.task.source, validation.split, validation.variant
        self.folder, self.devices = folder, devices
        self.path = workdir.evaluation_path(folder, split, source, variant)
        self.settings = {name: validation.task.config.data[name] for name in overrides.WINDOW_SETTINGS}
        self.identity = [source.fingerprint, split, workdir.model_version(folder), variant, self.settings]
        self._partial: list[ResumableSums] = []

    def resumable_sums(self, name: str = "", settings: Any = None) -> "ResumableSums | None":
        """Returns the sums so far, which `write` removes; None with several processes.

        Those would all have to resume at the same batch, which separate files cannot guarantee.

        Args:
            name: of these sums, if an evaluation has several. Default: "".
            settings: plain data, what else these sums depend on. Default: None.
        """
        if not self.devices.is_single_process:
            return None
        suffix = ".".join(["", *([name] if name else []), "partial.json"])
        self._partial.append(ResumableSums(self.path.with_suffix(suffix), [*self.identity, settings]))
        return self._partial[-1]

    def write(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Writes the scores in the chief process and returns them with "path", their file. Removes partial sums."""
        scores = {**scores, "path": str(self.path)}
        if self.devices.is_chief:
            write_json(self.path, scores)
            for sums in self._partial:
                sums.remove()
        return scores


class ResumableSums:
    """The sums of an evaluation so far, in a file that exists while the evaluation runs.

    Args:
        path: the file.
        identity: plain data that identifies the evaluation; sums of another one are ignored.
    """

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self._path, self._identity = path, json.loads(json.dumps(identity))

    def load(self) -> tuple[int, dict[str, Any] | None]:
        """Returns the number of finished batches and their sums by name; 0 and None if there are none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged: all is scored again
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            if saved["identity"] == self._identity:
                batches, sums = saved["batches"], saved["sums"]
                logging.info("Resuming after %d batches from %s.", batches, self._path)
                return batches, sums
        return 0, None

    def save(self, batches: int, sums: dict[str, Any]) -> None:
        """Writes the number of finished batches and their sums."""
        write_json(self._path, {"identity": self._identity, "batches": batches, "sums": sums})

    def remove(self) -> None:
        """Removes the file, once the scores are written."""
        self._path.unlink(missing_ok=True)


class Progress(keras.callbacks.Callback):
    """Shows how far an evaluation is: a bar on a terminal, or lines in a log, over several calls of `predict`.

    Args:
        num_batches: number of batches of the whole evaluation.
    """

    def __init__(self, num_batches: int) -> None:
        super().__init__()
        self._num_batches = num_batches
        self._bar = keras.utils.Progbar(num_batches, unit_name="batch", interval=0.2) if sys.stderr.isatty() else None
        self._first: int | None = None
        self._done = 0
        self._start_time = self._last_log = time.monotonic()

    def begin(self, first: int) -> None:
        """Sets the number of finished batches before the next call of `predict`."""
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
