"""Callbacks of `fit`: reports, checkpoints, and stopping on a signal."""

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.trainers.shared.loss_spikes import LossSpikes
from tf_sparse_attention.trainers.shared.signals import SignalContext


class StepCallback(keras.callbacks.Callback):
    """Base of callbacks that count the steps of the run, not those of one call of `fit`.

    Attributes:
        step: training steps done since the beginning of the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def set_initial_step(self, step: int) -> None:
        """Sets the step at which the next call of `fit` starts."""
        self._start = self.step = step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With several steps in an execution `batch` is the last of them, or beyond the end.
        before, self.step = self.step, min(self._start + batch + 1, self._start + self.params["steps"])
        self.on_steps_end(before, logs)

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        """Called after each execution, which did the steps from `before` to `self.step`."""
        raise NotImplementedError(f"{type(self).__name__} must define `on_steps_end`.")

    def has_passed(self, before: int, every: int) -> bool:
        """Returns whether a multiple of `every` is among the steps after `before`."""
        return every > 0 and self.step // every > before // every

    def sync(self) -> None:
        """Brings the values of the model's variables up to date, which JAX does not update during `fit`."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()


class SaveCheckpoints(StepCallback):
    """Calls `save(step)` every `every` steps."""

    def __init__(self, save: Callable[[int], None], every: int) -> None:
        super().__init__()
        self._save, self._every = save, every

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self.has_passed(before, self._every):
            self.sync()
            self._save(self.step)


class StopOnSignal(SignalContext, StepCallback):
    """Ends `fit` after the current step on SIGINT (Ctrl-C), SIGTERM (preemption) or SIGHUP (a closed terminal).

    Use it as a context around the training; see `SignalContext`.

    Args:
        workers: `workers.Workers`, which stop together where one of them has a signal. Default: None, one process.
    """

    END = "stopping after this step"

    def __init__(self, workers: Any = None) -> None:
        super().__init__()
        self._workers = workers

    @property
    def received(self) -> signal.Signals | None:
        """The first `signal.Signals` that was received, or None; of several workers from the step where they stop."""
        return self.first if self._workers is None else self._workers.agreed

    def on_signal(self) -> None:
        if self._workers is not None:
            self._workers.ask_to_stop(self.first)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._workers is not None:
            self._workers.begin()

    def on_predict_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._workers is not None:
            self._workers.begin()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self.received is not None:
            self.model.stop_training = True

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.received is not None:
            self.model.stop_predicting = True


class Report(StepCallback):
    """Measures training and passes the metrics to writers.

    Every `every` steps each writer gets `write(step, scalars)` with the mean "loss" since the last report, the largest
    one of a step, "loss_peak", and the number of "loss_spikes" among them, see `LossSpikes`; the "learning_rate", the
    "gradient_norm" of the last step, "skipped_updates" of an optimizer that leaves some out, "tokens_per_second"
    without the time of evaluation and checkpoints; for each routing layer "routing/PATH/used", the fraction of
    centroids that had a token in the last step, and "routing/PATH/entropy", their normalized entropy (1: uniform, 0: a
    single one); for each layer with an adaptive span "span/PATH/mean" and "span/PATH/longest", the spans of its heads
    in positions. A loss that is not finite is left out. After every execution it gets `progress(step, loss)`.

    Args:
        writers: objects with these two methods.
        every: steps between two reports.
        tokens_per_step: tokens in a batch.
    """

    def __init__(self, writers: Sequence[Any], every: int, tokens_per_step: int) -> None:
        super().__init__()
        self._writers, self._every, self._tokens_per_step = writers, every, tokens_per_step
        self._steps, self._seconds, self._compiled = 0, 0.0, False
        self._spikes = LossSpikes()

    def set_initial_step(self, step: int) -> None:
        super().set_initial_step(step)
        self._spikes.forget()  # `fit` begins with new metrics

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
            unused, counts = (ops.convert_to_numpy(variable) for variable in (layer.unused, layer.counts))
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
