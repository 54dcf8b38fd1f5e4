"""Handling of NaN and infinite losses and weights: training stops, or skips the update."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from tf_sparse_attention.trainers.shared.callbacks import StepCallback

MODES = ("stop", "skip")
EXIT_STATUS = 4
MAX_CONSECUTIVE = 100  # skipped updates after which a training stops
ADVICE = "Try a smaller config.optimizer.learning_rate or config.optimizer.global_clipnorm"
SKIPPING = "or set --config.train.nonfinite=skip to skip these updates and log their layers"


class NonfiniteError(ValueError):
    """Error for a training with a loss or weights that are not finite."""

    exit_status = EXIT_STATUS


def check_mode(mode: str) -> None:
    """Raise a `ValueError` unless the mode is in `MODES`."""
    if mode not in MODES:
        raise ValueError(f"`config.train.nonfinite` must be {' or '.join(MODES)}. Received: nonfinite={mode}.")


def make_error(step: int, reason: str, saved_step: int | None, skips: bool) -> NonfiniteError:
    """Create the error that ends a training.

    Args:
        step: the last step.
        reason: numbers that are not finite, as text.
        saved_step: step of the last checkpoint, or None.
        skips: whether the training skips updates that are not finite.
    """
    kept = "No checkpoint was saved" if saved_step is None else f"The checkpoint of step {saved_step} is kept"
    advice = ADVICE if skips else f"{ADVICE}, {SKIPPING}"
    return NonfiniteError(f"Loss and weights must be finite. Received: {reason} at step {step}. {kept}. {advice}.")


class StopOnNonfinite(StepCallback):
    """Callback that ends `fit` if the loss is NaN or infinite, before reports and checkpoints.

    Args:
        start: see `StepCallback`.
        make_error: function from a step and a reason to the error to raise.
    """

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

    Args:
        start: see `StepCallback`.
        every: steps between two reports.
        describe: function from a step to a text about the first numbers that are not finite.
        make_error: see `StopOnNonfinite`.
    """

    def __init__(
        self,
        start: int,
        every: int,
        describe: Callable[[int], str],
        make_error: Callable[[int, str], Exception],
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
        if self._consecutive >= MAX_CONSECUTIVE:
            raise self._make_error(self.step, f"{self._consecutive} updates in a row that are not finite")
        if not math.isfinite(loss):
            self.model.reset_metrics()


def make_callback(
    start: int, settings: Any, describe: Callable[[int], str], make_error: Callable[[int, str], Exception]
) -> StepCallback:
    """Create the callback for `config.train.nonfinite`; see `LogSkipped`."""
    if settings.nonfinite == "stop":
        return StopOnNonfinite(start, make_error)
    return LogSkipped(start, settings.log_every, describe, make_error)


def describe(model: keras.Model, batch: Any) -> str:
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
