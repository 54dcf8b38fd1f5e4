"""Training of a task's model, for `tsa-train`. See `trainers.tasks.task`."""

import contextlib
import dataclasses
import json
import os
from typing import Any

import keras
import ml_collections
from absl import logging

from tf_sparse_attention import checks
from tf_sparse_attention.atomic_files import remove_stale
from tf_sparse_attention.models import Model
from tf_sparse_attention.trainers.shared import (
    callbacks,
    command_line,
    components,
    evaluation,
    remote_run,
    workdir,
    writers,
)
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints, model_variables, state_variables
from tf_sparse_attention.trainers.shared.devices import OneDevice, choose_devices, make_deterministic
from tf_sparse_attention.trainers.tasks import registry

# Settings that can change when a run is resumed. Paths can change, since the contents are compared.
CHANGEABLE_SETTINGS = (
    *("generate", "train"),
    *(f"data.{name}" for name in ("data_dir", "local_dir", "overlap", "path", "validation_split", "vocabulary")),
)
FIXED_SETTINGS = ("train.dtype",)  # although their section can change


@dataclasses.dataclass
class Outcome:
    """Result of `train`: the last step, the `signal.Signals` that ended the training or None, and the model."""

    step: int
    signal: Any
    model: keras.Model


def train(config: ml_collections.ConfigDict, folder: str | os.PathLike) -> Outcome:
    """Train the model of a configuration, from the newest checkpoint in its run directory, if any.

    A run that is killed at any time and resumed with the same configuration ends with the same weights, bit for bit on
    one machine. Checkpoints of a run at an address such as gs://bucket/run are uploaded, see `remote_run`.

    Raises:
        RemoteError: If the address is unreachable at the start or for the upload of the last checkpoint.
        ValueError: If a setting is invalid or differs from the checkpoint, or another process trains in this folder.
        NonfiniteError: If loss or weights are not finite. Earlier checkpoints are kept.
    """
    for name, minimum in {"num_steps": 1, "log_every": 1, "evaluate_every": 0, "checkpoint_every": 0}.items():
        checks.check_count(f"config.train.{name}", config.train[name], minimum)
    checks.check_choice("config.train.nonfinite", config.train.nonfinite, ("stop", "skip"))
    run_dir = remote_run.open_run(folder, config.train.keep_checkpoints)
    folder = workdir.open_workdir(run_dir.folder, create=True)
    devices = choose_devices(config)
    devices.check_accumulation(config.optimizer.gradient_accumulation_steps)
    if not devices.is_single_process and isinstance(run_dir, remote_run.RemoteRun):
        raise ValueError(f"`workdir` must be on a disk that all processes share. Received: workdir={run_dir.path}.")
    # Only the chief of several processes writes.
    with workdir.hold_lock(folder) if devices.is_chief else contextlib.nullcontext():
        run_dir.fetch()
        outcome = _train(config, run_dir, devices)
        run_dir.finish(outcome.step)
    return outcome


def _train(config, run_dir, devices):
    execution = devices.execution(config.train.jit_compile, config.train.steps_per_execution)
    if config.train.deterministic:
        make_deterministic(execution["jit_compile"])
    with devices.scope():
        run = Run(config, run_dir, devices, execution)
        step = run.restore()
        signal = None
        if step < config.train.num_steps:
            with command_line.mark_faults():
                step, signal = run.fit(step)
        elif step > config.train.num_steps:
            logging.warning("The run is at step %d, beyond config.train.num_steps=%d.", step, config.train.num_steps)
    if signal is None:
        workdir.save_model(run_dir.folder, run.model, devices.is_chief)
    return Outcome(step, signal, run.model)


class Run:
    """The objects of one process of a run, in the scope of the devices. `execution`: arguments of `compile`."""

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        run_dir: remote_run.LocalRun,
        devices: OneDevice,
        execution: dict[str, Any],
    ) -> None:
        self.config, self.run_dir, self.devices = config, run_dir, devices
        self.folder = workdir.open_workdir(run_dir.folder)
        self.task = registry.make_task(config)
        self._batches = self.task.training_batches()
        self._description = describe(config, self.task.source.fingerprint)
        # Set the seed after the data is open: preparation draws random numbers and runs only once.
        keras.utils.set_random_seed(config.seed)
        self.model = self.task.make_model()
        if not (isinstance(self.model, Model) and hasattr(self.model, "backbone")):
            raise ValueError(
                "`Task.make_model` must return a `tsa.models.Model` with an attribute `backbone`, a model with "
                f"`hidden_dim`. Received: {self.model!r}."
            )
        self._training_model = components.with_memory(self.model, config.data.batch_size)
        optimizer = components.make_optimizer(config, self.model.backbone.hidden_dim)
        self._training_model.compile(optimizer, **self.task.compile_arguments(), **execution)
        self._training_model.optimizer.build(self.model.trainable_variables)
        self._evaluator: Any = None
        if config.train.evaluate_every:
            limit = config.train.evaluation_windows or None
            validation = self.task.validation(self.task, self.model, config.data.validation_split, limit)
            self._evaluator = evaluation.Evaluator(validation, devices, execution)
        self._checkpoints = Checkpoints(self.folder / workdir.CHECKPOINTS, config.train.keep_checkpoints)
        self._saved_step: int | None = None

    def restore(self) -> int:
        """Load the newest checkpoint and return its step, or 0 without a checkpoint."""
        newest = self._checkpoints.newest_metadata()
        step = 0 if newest is None else newest["step"]
        if newest is not None:
            check_compatible(newest, self._description)
            workdir.check_state(self.folder, self.task.get_state())
            self._checkpoints.load(step, self._variables())
            self._training_model.computed_windows = newest.get("windows", self._training_model.computed_windows)
            self._saved_step = step
            self.devices.warn_if_replicas_differ(newest.get("replicas"))
        elif (self.folder / workdir.MODEL).exists():
            raise ValueError(
                "`workdir` must be new or have checkpoints, because training replaces the model in it. Choose another "
                f"folder, or delete the model. Received: {self.folder / workdir.MODEL}, without checkpoints."
            )
        if self.devices.is_chief:
            remove_stale(self.folder)
            workdir.save_config(self.folder, self.config)
            workdir.save_state(self.folder, self.task.get_state())
            workdir.save_source(self.folder, self.task.source)
        sizes = self.model.count_params(), self.devices.num_replicas, keras.backend.backend()
        steps = step, self.config.train.num_steps
        logging.info("%d weights, %d replicas on %s, from step %d to %d in %s", *sizes, *steps, self.folder)
        return step

    def _variables(self):
        return state_variables(self._training_model, self._training_model.optimizer)

    def save(self, step: int) -> None:
        """Write the checkpoint of a step, unless it is already saved."""
        if step == self._saved_step:
            return
        weight = callbacks.find_weight(model_variables(self._training_model))
        if weight is not None:
            raise self._nonfinite_error(step, f"weights {weight}")
        # The computed windows of adaptive spans are not weights, but affect rounding.
        state = {"windows": self._training_model.computed_windows, "replicas": self.devices.num_replicas}
        metadata, files = {**self._description, **state}, self.run_dir.files()
        self._checkpoints.save(step, self._variables(), metadata, files, self.devices)
        if self.devices.is_chief:
            self.run_dir.upload(step)
        self._saved_step = step

    def fit(self, step: int) -> tuple[int, Any]:
        """Train from a step. Return the step after which training ended, and the signal that ended it or None."""
        settings = self.config.train
        (self.folder / workdir.MODEL).unlink(missing_ok=True)  # outdated after the next step
        tokens_per_step = self.config.data.batch_size * self.config.data.sequence_length
        self._outputs: list[writers.Writer] = []
        if self.devices.is_chief:
            flat = flat_settings(self._description["config"])
            self._outputs = writers.open_writers(self.folder, settings.num_steps, step, flat)
        watch: callbacks.StepCallback = callbacks.StopOnNonfinite(step, self._nonfinite_error)
        if settings.nonfinite == "skip":
            watch = callbacks.LogSkipped(step, settings.log_every, self._describe, self._nonfinite_error)
        with callbacks.StopOnSignal(self.devices, step) as stop:
            self._stop = stop
            self._training_model.fit(
                self.devices.dataset(self._batches, step, settings.num_steps),
                steps_per_epoch=settings.num_steps - step,
                callbacks=[
                    watch,
                    callbacks.Report(step, self._outputs, settings.log_every, tokens_per_step),
                    callbacks.ShrinkWindows(step, settings.shrink_windows_every, settings.shrink_windows_margin),
                    callbacks.CallEvery(step, self._validate, settings.evaluate_every),
                    callbacks.CallEvery(step, self.save, settings.checkpoint_every),
                    stop,
                ],
                verbose=0,
                shuffle=False,
            )
            self.save(stop.step)
        return stop.step, stop.agreed

    def _nonfinite_error(self, step, reason):
        """Create the error for numbers that are not finite at a step, with the layer if it can be found."""
        skips, layer = self.config.train.nonfinite == "skip", ""
        if not skips and self._saved_step is not None and self.devices.num_replicas == 1:
            # All weights may be NaN now. The weights of the checkpoint can show the first layer that is not finite.
            self._checkpoints.load(self._saved_step, self._variables())
            layer = self._describe(step)
        return callbacks.make_error(step, reason + layer, self._saved_step, skips)

    def _describe(self, step):
        if not self.devices.can_run_alone:
            return ""
        return callbacks.describe_nonfinite(self._training_model, self._batches[step - 1])

    def _validate(self, step):
        """Score the validation split and write the scores, unless a signal interrupts the evaluation."""
        scores = self._evaluator.scores([callbacks.StopPrediction(self._stop)])
        if self._stop.interrupts_validation:
            return  # some batches are not scored
        for writer in self._outputs:
            writer.write(step, {f"validation/{name}": value for name, value in scores.items()})
        if self.config.train.illustrate and self._outputs and self.devices.can_show:
            examples = self._evaluator.validation.examples()
            for writer in self._outputs:
                if examples.scalars:
                    writer.write(step, examples.scalars)
                writer.show(step, examples)


def describe(config: ml_collections.ConfigDict, fingerprint: str) -> dict[str, Any]:
    """Return the description of a run for its checkpoints, as plain data. `fingerprint` identifies the data."""
    # Through JSON, so that tuples and lists compare as equal.
    return {"config": json.loads(json.dumps(config.to_dict())), "fingerprint": fingerprint}


def check_compatible(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a `ValueError` with the first different setting if a run cannot be resumed from a checkpoint.

    `saved` and `now` are the results of `describe` for the checkpoint and for the run.
    """
    before, after = flat_settings(saved["config"]), flat_settings(now["config"])
    for name in sorted({*before, *after}):
        if not _is_changeable(name) and before.get(name) != after.get(name):
            raise ValueError(
                f"`config.{name}` must be the same as in the checkpoint. To change it, start a new run with another "
                f"--workdir. Received: {after.get(name)!r}, in the checkpoint {before.get(name)!r}."
            )
    steps = [settings.get("train.num_steps") for settings in (after, before)]
    is_default = after.get("optimizer.schedule") == "cosine" and after.get("optimizer.decay_steps") is None
    if is_default and steps[0] != steps[1]:
        logging.warning(
            "The cosine schedule ends at config.train.num_steps, which is %s instead of %s. The learning rate changes "
            "abruptly. Set config.optimizer.decay_steps in runs that may become longer.",
            *steps,
        )
    if saved["fingerprint"] != now["fingerprint"]:
        raise ValueError(
            "`config.data` must match the training data of the checkpoint. For other data, start a new run with "
            f"another --workdir. Received: {now['fingerprint']}, in the checkpoint {saved['fingerprint']}."
        )


def _is_changeable(name):
    return name not in FIXED_SETTINGS and any(
        name == changeable or name.startswith(f"{changeable}.") for changeable in CHANGEABLE_SETTINGS
    )


def flat_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested settings to one dictionary with keys such as "section.name" and "section.list[0].name"."""
    flat = {}
    for path, value in keras.tree.flatten_with_path(settings):
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        flat[name.removeprefix(".")] = value
    return flat
