"""Trains a model: what `tsa-train` does. What is trained is up to a task, see `trainers.tasks.task`."""

import contextlib
import dataclasses
import os
from typing import Any

import keras
import ml_collections
from absl import logging

from tf_sparse_attention.atomic_files import remove_stale
from tf_sparse_attention.trainers.shared import (
    callbacks,
    command_line,
    components,
    devices,
    evaluation,
    lock,
    nonfinite,
    remote_run,
    resume,
    workdir,
    writers,
)
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, model_variables, state_variables
from tf_sparse_attention.trainers.tasks import registry


@dataclasses.dataclass
class Outcome:
    """How a call of `train` ended: the last step, the `signal.Signals` that ended it or None, and the model."""

    step: int
    signal: Any
    model: keras.Model


def train(config: ml_collections.ConfigDict, folder: str | os.PathLike) -> Outcome:
    """Trains the model of a configuration, starting at the newest checkpoint in its work folder, if any.

    A run that is killed at any moment and resumed with the same configuration ends with the same weights, bit for bit
    on one machine.

    Args:
        config: `ml_collections.ConfigDict`, see `configs/base.py`.
        folder: the work folder; made if it does not exist. At an address as gs://bucket/run, checkpoints are copied
            there, see `remote_run`.

    Returns:
        `Outcome`.

    Raises:
        RemoteError: If an address cannot be reached at the start, or at the end for the last checkpoint.
        ValueError: For a wrong setting, or one that differs from that of the checkpoint, or if another process trains
            in this folder.
        NonfiniteError: Where loss or weights are not finite; the checkpoints before stay.
    """
    _check(config)
    place = remote_run.open_run(folder, config.train.keep_checkpoints)
    folder = workdir.open_workdir(place.folder, create=True)
    used = devices.choose_devices(config)
    used.check_accumulation(config.optimizer.gradient_accumulation_steps)
    if not used.is_single_process and isinstance(place, remote_run.RemoteRun):
        raise ValueError(f"`workdir` must be on a disk that all processes share. Received: workdir={place.path}.")
    # Of several processes of one run only the chief writes.
    with lock.locked(folder) if used.is_chief else contextlib.nullcontext():
        place.fetch()
        outcome = _train(config, place, used)
        place.finish(outcome.step)
    return outcome


def _train(config, place, used):
    execution = used.execution(config.train.jit_compile, config.train.steps_per_execution)
    if config.train.deterministic:
        devices.make_deterministic(execution["jit_compile"])
    with used.scope():
        run = Run(config, place, used, execution)
        step = run.restore()
        signal = None
        if step < config.train.num_steps:
            with command_line.faults_marked():
                step, signal = run.fit(step)
        elif step > config.train.num_steps:
            logging.warning("The run is at step %d, beyond config.train.num_steps=%d.", step, config.train.num_steps)
    if signal is None:
        workdir.save_model(place.folder, run.model, used.is_chief)
    return Outcome(step, signal, run.model)


def _check(config):
    for name, least in {"num_steps": 1, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 0}.items():
        if config.train[name] < least:
            raise ValueError(f"`config.train.{name}` must be {least} or more. Received: {name}={config.train[name]}.")
    nonfinite.check_mode(config.train.nonfinite)


class Run:
    """The objects of one process of a run.

    Args:
        config: as for `train`.
        place: the `LocalRun` of the work folder.
        used: from `devices.choose_devices`; the run is created and used in its scope.
        execution: arguments of `keras.Model.compile`, see `devices.OneDevice.execution`.
    """

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        place: remote_run.LocalRun,
        used: devices.OneDevice,
        execution: dict[str, Any],
    ) -> None:
        self.config, self.place, self.devices = config, place, used
        self.folder = workdir.open_workdir(place.folder)
        self.task = registry.make_task(config)
        self._batches = self.task.training_batches()
        self._description = resume.describe(config, self.task.source.fingerprint)
        # After the data, since preparing it, which only the first start does, draws random numbers.
        keras.utils.set_random_seed(config.seed)
        self.model = self.task.make_model()
        self._training_model = components.with_memory(self.model, config.data.batch_size)
        optimizer = components.make_optimizer(config, self.model.backbone.hidden_dim)
        self._training_model.compile(optimizer, **self.task.compile_arguments(), **execution)
        self._training_model.optimizer.build(self.model.trainable_variables)
        self._evaluator: Any = None
        if config.train.evaluate_every:
            limit = config.train.evaluation_windows or None
            validation = self.task.validation(self.task, self.model, config.data.validation_split, limit)
            self._evaluator = evaluation.Evaluator(validation, used, execution)
        self._checkpoints = Checkpoints(self.folder / workdir.CHECKPOINTS, config.train.keep_checkpoints)
        self._saved_step: int | None = None

    def restore(self) -> int:
        """Loads the newest checkpoint, if there is one, and returns its step, else 0."""
        newest = self._checkpoints.newest_metadata()
        step = 0 if newest is None else newest["step"]
        if newest is not None:
            resume.check_compatible(newest, self._description)
            workdir.check_state(self.folder, self.task.get_state())
            self._checkpoints.load(step, self._variables())
            self._training_model.computed_windows = newest.get("windows", self._training_model.computed_windows)
            self._saved_step = step
            self.devices.warn_if_replicas_differ(newest.get("replicas"))
        if self.devices.is_chief:
            remove_stale(self.folder)
            workdir.save_config(self.folder, self.config)
            workdir.save_state(self.folder, self.task.get_state())
            workdir.save_source(self.folder, self.task.source)
        logging.info(
            "%d weights, %d replicas of %s, from step %d to %d in %s",
            self.model.count_params(),
            self.devices.num_replicas,
            keras.backend.backend(),
            step,
            self.config.train.num_steps,
            self.folder,
        )
        return step

    def _variables(self):
        return state_variables(self._training_model, self._training_model.optimizer)

    def save(self, step: int) -> None:
        """Writes the checkpoint of a step unless it is saved already."""
        if step != self._saved_step:
            weight = nonfinite.find_weight(model_variables(self._training_model))
            if weight is not None:
                raise self._nonfinite_error(step, f"weights {weight}")
        if step != self._saved_step:
            # The computed windows of adaptive spans are not weights, but affect rounding.
            more = {"windows": self._training_model.computed_windows, "replicas": self.devices.num_replicas}
            metadata, files = {**self._description, **more}, self.place.files()
            self._checkpoints.save(step, self._variables(), metadata, files, self.devices)
            if self.devices.is_chief:
                self.place.upload(step)
        self._saved_step = step

    def fit(self, step: int) -> tuple[int, Any]:
        """Train from a step to the last.

        Returns:
            The step after which training ended, and the signal that ended it or None.
        """
        settings = self.config.train
        (self.folder / workdir.MODEL).unlink(missing_ok=True)  # older than the checkpoints to come
        tokens_per_step = self.config.data.batch_size * self.config.data.sequence_length
        described = resume.flat_settings(self._description["config"])
        self._outputs = (
            writers.open_writers(self.folder, settings.num_steps, step, described) if self.devices.is_chief else []
        )
        with callbacks.StopOnSignal(self.devices, step) as stop:
            self._stop = stop
            self._training_model.fit(
                self.devices.dataset(self._batches, step, settings.num_steps),
                steps_per_epoch=settings.num_steps - step,
                callbacks=[
                    nonfinite.make_callback(step, settings, self._describe, self._nonfinite_error),
                    callbacks.Report(step, self._outputs, settings.log_every, tokens_per_step),
                    callbacks.ShrinkWindows(step, settings.shrink_windows_every, settings.shrink_windows_margin),
                    callbacks.Validate(step, self._validate, settings.evaluate_every),
                    callbacks.SaveCheckpoints(step, self.save, settings.checkpoint_every),
                    stop,
                ],
                verbose=0,
                shuffle=False,
            )
            self.save(stop.step)
        return stop.step, stop.agreed

    def _nonfinite_error(self, step, found):
        """Returns the error of numbers that are not finite at a step, and in which layer if that can be said."""
        skips, where = self.config.train.nonfinite == "skip", ""
        if not skips and self._saved_step is not None and self.devices.num_replicas == 1:
            # By now all weights may be NaN; with those of the checkpoint the batch may show where it begins.
            self._checkpoints.load(self._saved_step, self._variables())
            where = self._describe(step)
        return nonfinite.make_error(step, found + where, self._saved_step, skips)

    def _describe(self, step):
        if not self.devices.can_run_alone:
            return ""
        return nonfinite.describe(self._training_model, self._batches[step - 1])

    def _validate(self, step):
        """Score the validation split and write the scores, unless a signal interrupts it."""
        scores = self._evaluator.scores([callbacks.StopPrediction(self._stop)])
        if self._stop.interrupts_validation:
            return  # Some batches are not scored.
        for writer in self._outputs:
            writer.write(step, {f"validation/{name}": value for name, value in scores.items()})
        if self.config.train.illustrate and self._outputs and self.devices.can_show:
            shown = self._evaluator.validation.examples()
            for writer in self._outputs:
                if shown.scalars:
                    writer.write(step, shown.scalars)
                writer.show(step, shown.texts, shown.pictures, shown.sounds)
