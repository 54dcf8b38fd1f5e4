"""Callbacks of `fit`: reports, validation, checkpoints, and stopping on signals."""

import collections
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import keras
import numpy as np
from absl import logging
from keras import ops

from tf_sparse_attention.layers.parts.adaptive_span import find_spans
from tf_sparse_attention.layers.parts.selectors import Centroids
from tf_sparse_attention.trainers.shared.checkpoints import as_numpy
from tf_sparse_attention.trainers.shared.devices import SIGNALS, OneDevice

WINDOW, MIN_LOSSES = 100, 20  # maximum and minimum number of losses to compare with
NUM_DEVIATIONS = 6.0
MIN_DEVIATION = 0.01  # relative to the median, for nearly equal losses
MAX_SKIPPED = 100  # consecutive skipped updates after which a training stops


class LossSpikes:
    """Counter of loss spikes during training. Keras only reports the running mean of the losses.

    A spike is a loss more than six deviations above the median of the previous 100 losses. The deviation is 1.4826 x
    median(|loss - median|), the standard deviation if losses are normally distributed. The first 20 losses of a process
    are never spikes.
    """

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._mean, self._count = 0.0, 0
        self._begin()

    def _begin(self):
        self._largest, self._spikes = -math.inf, 0

    def add(self, mean: float) -> None:
        """Add a loss, given the mean of all losses since `reset_mean`. An execution of several steps has one loss."""
        # Exact for batches of equal weight. With token weights, the loss of a large batch deviates too much.
        loss = mean + self._count * (mean - self._mean)
        self._mean, self._count = mean, self._count + 1
        if not math.isfinite(mean):
            self.reset_mean()
            return
        self._spikes += self._is_spike(loss)
        self._largest = max(self._largest, loss)
        self._recent.append(loss)

    def _is_spike(self, loss):
        if len(self._recent) < MIN_LOSSES:
            return False
        median = statistics.median(self._recent)
        deviation = 1.4826 * statistics.median(abs(recent - median) for recent in self._recent)
        return loss > median + NUM_DEVIATIONS * max(deviation, MIN_DEVIATION * abs(median))

    def reset_mean(self) -> None:
        """Start a new mean. Call it when Keras resets its metrics."""
        self._mean, self._count = 0.0, 0

    def pop_scalars(self) -> dict[str, float]:
        """Return "loss_peak", the largest loss, and "loss_spikes", the number of spikes, since the last call."""
        scalars: dict[str, float] = {"loss_peak": self._largest} if self._largest > -math.inf else {}
        scalars["loss_spikes"] = self._spikes
        self._begin()
        return scalars


class StepCallback(keras.callbacks.Callback):
    """Base class of callbacks that count the steps of a run. `start` is the step at which `fit` starts.

    Attributes:
        step: number of training steps of the run so far, including steps before it was resumed.
    """

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self._start = self.step = start

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # With several steps per execution, `batch` is the last step and can be beyond the end.
        before, self.step = self.step, min(self._start + batch + 1, self._start + self.params["steps"])
        self.on_steps_end(before, logs)

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        """Handle the end of an execution of the steps after `before`, up to `self.step`."""
        raise NotImplementedError(f"{type(self).__name__} must define `on_steps_end`.")

    def has_passed(self, before: int, every: int) -> bool:
        """Return whether the steps after `before`, up to `self.step`, include a multiple of `every`."""
        return every > 0 and self.step // every > before // every

    def sync(self) -> None:
        """Update the variables of the model. JAX does not update them during `fit`."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()


class ShrinkWindows(StepCallback):
    """Callback that shrinks the windows of adaptive spans every `every` steps. 0: never.

    See `tsa.models.Model.shrink_windows`. `margin`: maximum growth of spans between two updates, in positions.
    """

    def __init__(self, start: int, every: int, margin: int) -> None:
        super().__init__(start)
        self._every, self._margin = every, margin

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._every and self.step == 0:  # a resumed run has the windows of its checkpoint
            self._shrink()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self.has_passed(before, self._every):
            self.sync()
            self._shrink()

    def _shrink(self):
        before = self.model.computed_windows
        window = self.model.shrink_windows(self._margin)
        if self.model.computed_windows != before:
            logging.info("Step %d: the windows of adaptive spans have at most %d positions.", self.step, window)
            self.model.make_train_function()


class CallEvery(StepCallback):
    """Callback that calls `function(step)` every `every` steps and after the last step. 0: never."""

    def __init__(self, start: int, function: Callable[[int], None], every: int) -> None:
        super().__init__(start)
        self._function, self._every = function, every

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        is_last = self._every > 0 and self.step == self._start + self.params["steps"]
        if is_last or self.has_passed(before, self._every):
            self.sync()
            self._function(self.step)


class SignalContext:
    """Base class of contexts in which the first signal calls `on_signal` instead of ending the process.

    A second signal of the same kind ends the process, except SIGHUP: shell and system can each send one. If SIGHUP is
    ignored, as under `nohup`, it stays ignored.
    """

    MESSAGE = "stopping"  # printed after a signal
    received: signal.Signals | None = None  # the first signal

    def signals_to_handle(self) -> Sequence[signal.Signals]:
        """Return the signals that get a handler."""
        return SIGNALS

    def __enter__(self) -> Self:
        hangup = getattr(signal, "SIGHUP", None)  # Windows has no SIGHUP
        is_ignored = hangup is not None and signal.getsignal(hangup) == signal.SIG_IGN
        numbers = [number for number in self.signals_to_handle() if not (is_ignored and number == hangup)]
        self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        received = signal.Signals(number)
        self.received = self.received or received
        second: dict[Any, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        signal.signal(number, second.get(received, signal.SIG_IGN))
        discard_output_of_closed_terminal()
        advice = "." if received.name == "SIGHUP" else "; send it again to kill the process."
        # Not `print`: the signal may interrupt another `print`.
        os.write(2, f"\n{received.name}: {self.MESSAGE}{advice}\n".encode())
        self.on_signal()

    def on_signal(self) -> None:
        """Handle the first signal of each kind."""


class InterruptOnSignal(SignalContext):
    """Context that raises `KeyboardInterrupt` on each of the signals, so that results so far can be saved.

    If the exception leaves the context, the process exits with the status of the signal.
    """

    @property
    def status(self) -> int:
        """Exit status that shells report for a process that the signal ended. 130 without a signal."""
        return 128 + (self.received or signal.SIGINT)

    def on_signal(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if isinstance(exception[1], KeyboardInterrupt) and self.received is not None:
            raise SystemExit(self.status)


def discard_output_of_closed_terminal(descriptors: Sequence[int] = (1, 2)) -> None:
    """Redirect output to /dev/null after the terminal closes. Otherwise, a progress bar would raise an error."""
    for descriptor in descriptors:
        try:
            os.write(descriptor, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)


class StopOnSignal(SignalContext, StepCallback):
    """Callback that ends `fit` after the current step on SIGINT, SIGTERM or SIGHUP.

    All processes of a run end after the same step. It is also a context manager for `fit`; see `SignalContext`.
    """

    MESSAGE = "stopping after this step"

    def __init__(self, devices: OneDevice, start: int = 0) -> None:
        super().__init__(start)
        self._devices = devices
        self.agreed: signal.Signals | None = None  # the signal that ended `fit`, the same in all processes

    def signals_to_handle(self) -> Sequence[signal.Signals]:
        return self._devices.signals_to_handle()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        self.agreed = self._devices.agree_on_signal(self.received, self.step)
        if self.agreed is not None:
            self.model.stop_training = True

    @property
    def interrupts_validation(self) -> bool:
        """Whether to interrupt a running validation. False with several processes: the other processes would wait."""
        return self.received is not None and self._devices.is_single_process


class StopPrediction(keras.callbacks.Callback):
    """Callback that ends the `predict` of a validation when the `StopOnSignal` of the training receives a signal."""

    def __init__(self, stop: StopOnSignal) -> None:
        super().__init__()
        self._stop = stop

    def on_predict_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._stop.interrupts_validation:
            self.model.stop_predicting = True


class Report(StepCallback):
    """Callback that measures training and passes the metrics to writers.

    Every `every` steps, it calls `write(step, scalars)` of each writer with

    - "loss", the mean since the last report, if finite; "loss_peak" and "loss_spikes", see `LossSpikes`;
    - "learning_rate"; "gradient_norm" of the last step; "skipped_updates", if the optimizer can skip updates;
    - "tokens_per_second", without the time of validation and checkpoints;
    - for each routing layer, "routing/PATH/used", the fraction of centroids with tokens in the last step, and
      "routing/PATH/entropy", the normalized entropy of token counts (1: uniform, 0: one centroid has all tokens);
    - for each layer with an adaptive span, "span/PATH/mean" and "span/PATH/longest" of its heads, in positions.

    After every execution, it calls `progress(step, loss)`.
    """

    def __init__(self, start: int, writers: Sequence[Any], every: int, tokens_per_step: int) -> None:
        super().__init__(start)
        self._writers, self._every, self._tokens_per_step = writers, every, tokens_per_step
        self._steps, self._seconds, self._compiled = 0, 0.0, False
        self._spikes = LossSpikes()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin = time.perf_counter()

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        if self._compiled:  # the first execution includes compilation
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
            self._spikes.reset_mean()

    def _scalars(self, logs):
        optimizer = self.model.optimizer
        scalars = {
            **({"loss": logs["loss"]} if math.isfinite(logs["loss"]) else {}),
            **self._spikes.pop_scalars(),
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
    """Return the use of the centroids of each routing layer, see `Report`."""
    scalars = {}
    for layer in model._flatten_layers():
        if isinstance(layer, Centroids):
            name = _path(layer.centroids)
            unused, counts = (as_numpy(variable) for variable in (layer.unused, layer.counts))
            scalars[f"routing/{name}/used"] = float(np.mean(unused == 0))
            scalars[f"routing/{name}/entropy"] = float(np.mean(normalized_entropy(counts)))
    return scalars


def span_scalars(model: keras.Model) -> dict[str, float]:
    """Return the mean and longest span of each layer with an adaptive span, see `Report`."""
    scalars = {}
    for span in find_spans(model):
        name, spans = _path(span.fraction), span.spans()
        scalars[f"span/{name}/mean"] = float(np.mean(spans))
        scalars[f"span/{name}/longest"] = float(np.max(spans))
    return scalars


def _path(variable):
    """Return PATH from the variable path BACKBONE/PATH/STATE/VARIABLE."""
    return "/".join(variable.path.split("/")[1:-2])


def normalized_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of each row of counts (N, K), divided by its maximum log K. For K = 1, return 1."""
    shares = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-30)
    if counts.shape[-1] == 1:
        return np.ones(counts.shape[:-1])
    return -np.sum(shares * np.log(np.maximum(shares, 1e-30)), axis=-1) / np.log(counts.shape[-1])


class NonfiniteError(ValueError):
    """Error for a training with a loss or weights that are not finite."""

    exit_status = 4


def make_error(step: int, reason: str, saved_step: int | None, skips: bool) -> NonfiniteError:
    """Create the error that ends a training at a step. `reason`: numbers that are not finite."""
    kept = "No checkpoint was saved" if saved_step is None else f"The checkpoint of step {saved_step} is kept"
    advice = "Try a smaller config.optimizer.learning_rate or config.optimizer.global_clipnorm"
    if not skips:
        advice += ", or set --config.train.nonfinite=skip to skip these updates and log their layers"
    return NonfiniteError(f"Loss and weights must be finite. Received: {reason} at step {step}. {kept}. {advice}.")


class StopOnNonfinite(StepCallback):
    """Callback that ends `fit` with `make_error(step, reason)` if the loss is NaN or infinite."""

    def __init__(self, start: int, make_error: Callable[[int, str], Exception]) -> None:
        super().__init__(start)
        self._make_error = make_error

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        loss = logs["loss"]  # type: ignore[index]  # never None in training
        if not math.isfinite(loss):
            self.sync()
            raise self._make_error(self.step, f"a loss of {loss}")


class LogSkipped(StepCallback):
    """Callback that logs skipped updates of `tsa.optimizers.SkipNonfinite`, and ends `fit` after 100 in a row.

    The count is checked at every report and after a nonfinite loss. A nonfinite loss is removed from the reported mean.
    `describe(step)` returns a text about the first numbers that are not finite.
    """

    def __init__(
        self, start: int, every: int, describe: Callable[[int], str], make_error: Callable[[int, str], Exception]
    ) -> None:
        super().__init__(start)
        self._every, self._describe, self._make_error = every, describe, make_error
        self._last: tuple[int, int] | None = None
        self._consecutive = 0

    def on_steps_end(self, before: int, logs: dict[str, Any] | None) -> None:
        loss = logs["loss"]  # type: ignore[index]  # never None in training
        if self._last is None:
            self._last = before, 0
        if math.isfinite(loss) and not self.has_passed(before, self._every):
            return
        self.sync()
        last_step, last_count = self._last
        self._last = self.step, int(ops.convert_to_numpy(self.model.optimizer.num_skipped))
        steps, skipped = self.step - last_step, self._last[1] - last_count
        self._consecutive = self._consecutive + skipped if skipped == steps else 0
        if skipped:
            logging.warning(
                "Step %d: skipped %d of %d updates. Loss: %s%s",
                *(self.step, skipped, steps, loss, self._describe(self.step)),
            )
        if self._consecutive >= MAX_SKIPPED:
            raise self._make_error(self.step, f"{self._consecutive} updates in a row that are not finite")
        if not math.isfinite(loss):
            self.model.reset_metrics()


def describe_nonfinite(model: keras.Model, batch: Any) -> str:
    """Return the first layer with numbers that are not finite on a batch, as ": SENTENCE", or ""."""
    from tf_sparse_attention.analysis import find_nonfinite

    try:
        inputs, *targets = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(np.asarray, batch))
        found = find_nonfinite(model, inputs, targets[0], targets[1], training=True)
    except Exception as error:  # such as too little memory: it must not hide the original error
        logging.warning("The layer could not be found: %s", str(error).split("\n")[0])
        return ""
    return "" if found is None else f": {found}"


def find_weight(variables: Iterable[Any]) -> str | None:
    """Return the path of the first variable with a number that is not finite, or None."""
    for variable in variables:
        is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(variable.dtype))
        if is_float and not bool(ops.convert_to_numpy(ops.all(ops.isfinite(variable)))):
            return variable.path
    return None
