"""Callbacks of `fit`: reports, validation, checkpoints, and stopping on a signal."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.trainers.shared.devices import OneDevice
from tf_sparse_attention.trainers.shared.loss_spikes import LossSpikes
from tf_sparse_attention.trainers.shared.shards import as_numpy
from tf_sparse_attention.trainers.shared.signals import SignalContext


class StepCallback(keras.callbacks.Callback):
    """Base of callbacks that count the steps of the run, including those before it was resumed.

    Args:
        start: step at which `fit` starts. Default 0.

    Attributes:
        step: number of training steps since the beginning of the run.
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self._start = self.step = start

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With several steps per execution, `batch` is the last of them, or beyond the end.
        before, self.step = self.step, min(self._start + batch + 1, self._start + self.params["steps"])
        self.on_steps_end(before, logs)

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        """Handle the end of an execution of the steps after `before`, up to `self.step`."""
        raise NotImplementedError(f"{type(self).__name__} must define `on_steps_end`.")

    def has_passed(self, before: int, every: int) -> bool:
        """Return whether a multiple of `every` is among the steps of an execution after `before`."""
        return every > 0 and self.step // every > before // every

    def sync(self) -> None:
        """Update the variables of the model, which JAX does not update during `fit`."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()


class ShrinkWindows(StepCallback):
    """Shrinks the windows of adaptive spans to the learned spans, see `tsa.models.Model.shrink_windows`.

    Args:
        start: see `StepCallback`.
        every: steps between two updates. 0: never.
        margin: positions by which spans can grow in between.
    """

    def __init__(self, start: int, every: int, margin: int) -> None:
        super().__init__(start)
        self._every, self._margin = every, margin

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._every and self.step == 0:  # later windows are those of the checkpoint
            self._shrink()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self.has_passed(before, self._every):
            self.sync()
            self._shrink()

    def _shrink(self):
        before = self.model.computed_windows
        window = self.model.shrink_windows(self._margin)
        if self.model.computed_windows != before:
            logging.info("Step %d: adaptive spans compute %d positions at most.", self.step, window)
            self.model.make_train_function()


class Validate(StepCallback):
    """Calls `validate(step)` every `every` steps and after the last one.

    Args:
        start: see `StepCallback`.
        validate: function of a step.
        every: steps between two calls. 0: never.
    """

    def __init__(self, start: int, validate: Callable[[int], None], every: int) -> None:
        super().__init__(start)
        self._validate, self._every = validate, every

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        is_last = self._every > 0 and self.step == self._start + self.params["steps"]
        if is_last or self.has_passed(before, self._every):
            self.sync()
            self._validate(self.step)


class SaveCheckpoints(StepCallback):
    """Calls `save(step)` every `every` steps.

    Args:
        start: see `StepCallback`.
        save: function of a step.
        every: steps between two calls. 0: never.
    """

    def __init__(self, start: int, save: Callable[[int], None], every: int) -> None:
        super().__init__(start)
        self._save, self._every = save, every

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self.has_passed(before, self._every):
            self.sync()
            self._save(self.step)


class StopOnSignal(SignalContext, StepCallback):
    """Ends `fit` after the current step on SIGINT (Ctrl-C), SIGTERM (preemption) or SIGHUP (a closed terminal).

    All processes of a run end after the same step. Use it as a context around the training; see `SignalContext`.

    Args:
        devices: from `devices.choose_devices`.
        start: see `StepCallback`.

    Attributes:
        agreed: the signal that ended `fit`, the same in all processes, or None.
    """

    END = "stopping after this step"

    def __init__(self, devices: OneDevice, start: int = 0) -> None:
        super().__init__(start)
        self._devices = devices
        self.agreed: signal.Signals | None = None

    def signals_to_handle(self) -> Sequence[signal.Signals]:
        return self._devices.signals_to_handle()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        self.agreed = self._devices.agree_on_signal(self.first, self.step)
        if self.agreed is not None:
            self.model.stop_training = True

    @property
    def interrupts_validation(self) -> bool:
        """Whether a signal ends a validation that is running. Other processes of a run would wait for this one."""
        return self.first is not None and self._devices.is_single_process


class StopPrediction(keras.callbacks.Callback):
    """Ends the `predict` of a validation when a signal is received.

    Args:
        stop: the `StopOnSignal` of the training.
    """

    def __init__(self, stop: StopOnSignal) -> None:
        super().__init__()
        self._stop = stop

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._stop.interrupts_validation:
            self.model.stop_predicting = True


class Report(StepCallback):
    """Measures training and passes the metrics to writers.

    Every `every` steps each writer gets `write(step, scalars)` with

    - the mean "loss" since the last report, unless it is not finite, "loss_peak", the largest loss of a step, and
      "loss_spikes", see `LossSpikes`;
    - "learning_rate", "gradient_norm" of the last step, and "skipped_updates" of an optimizer that skips some;
    - "tokens_per_second", without the time of validation and checkpoints;
    - for each routing layer "routing/PATH/used", the fraction of centroids that had a token in the last step, and
      "routing/PATH/entropy", their normalized entropy (1: uniform, 0: a single one);
    - for each layer with an adaptive span "span/PATH/mean" and "span/PATH/longest", the spans of its heads in
      positions.

    After every execution it gets `progress(step, loss)`.

    Args:
        start: see `StepCallback`.
        writers: objects with these two methods.
        every: steps between two reports.
        tokens_per_step: tokens in a batch; of pairs, those of the targets.
    """

    def __init__(self, start: int, writers: Sequence[Any], every: int, tokens_per_step: int) -> None:
        super().__init__(start)
        self._writers, self._every, self._tokens_per_step = writers, every, tokens_per_step
        self._steps, self._seconds, self._compiled = 0, 0.0, False
        self._spikes = LossSpikes()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin = time.perf_counter()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self._compiled:  # The first execution of a process is not timed.
            self._seconds += time.perf_counter() - self._begin
            self._steps += self.step - before
        self._compiled = True
        self._spikes.add(float(logs["loss"]))  # type: ignore[index]  # never None in training
        for writer in self._writers:
            writer.progress(self.step, logs["loss"])  # type: ignore[index]  # never None in training
        if self.has_passed(before, self._every):
            self.sync()
            scalars = self._scalars(logs)
            for writer in self._writers:
                writer.write(self.step, scalars)
            self.model.reset_metrics()
            self._spikes.forget()

    def _scalars(self, logs):
        optimizer = self.model.optimizer
        scalars = {
            **({"loss": logs["loss"]} if math.isfinite(logs["loss"]) else {}),
            **self._spikes.take(),
            "learning_rate": float(ops.convert_to_numpy(optimizer.learning_rate)),
            "gradient_norm": float(ops.convert_to_numpy(optimizer.gradient_norm)),
        }
        if hasattr(optimizer, "num_skipped"):
            scalars["skipped_updates"] = int(ops.convert_to_numpy(optimizer.num_skipped))
        if self._steps:
            scalars["tokens_per_second"] = self._steps * self._tokens_per_step / self._seconds
        self._steps, self._seconds = 0, 0.0
        return {**scalars, **routing_scalars(self.model), **span_scalars(self.model)}


def routing_scalars(model: keras.Model) -> dict[str, float]:
    """Returns the usage of the centroids of each routing layer, see `Report`."""
    scalars = {}
    for layer in model._flatten_layers():
        if isinstance(layer, Centroids):
            name = _path(layer.centroids)
            unused, counts = (as_numpy(variable) for variable in (layer.unused, layer.counts))
            scalars[f"routing/{name}/used"] = float(np.mean(unused == 0))
            scalars[f"routing/{name}/entropy"] = float(np.mean(normalized_entropy(counts)))
    return scalars


def span_scalars(model: keras.Model) -> dict[str, float]:
    """Returns the spans of the heads of each layer with an adaptive span, see `Report`."""
    scalars = {}
    for span in find_spans(model):
        name, reached = _path(span.fraction), span.spans()
        scalars[f"span/{name}/mean"] = float(np.mean(reached))
        scalars[f"span/{name}/longest"] = float(np.max(reached))
    return scalars


def _path(variable):
    """Returns PATH of BACKBONE/PATH/STATE/VARIABLE."""
    return "/".join(variable.path.split("/")[1:-2])


def normalized_entropy(counts: np.ndarray) -> np.ndarray:
    """Returns the entropy of each row of counts (N, K) divided by its maximum, log K; 1 for a single column."""
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-30)
    if counts.shape[-1] == 1:
        return np.ones(counts.shape[:-1])
    return -np.sum(shares * np.log(np.maximum(shares, 1e-30)), axis=-1) / np.log(counts.shape[-1])
