"""Writers of the metrics of a run: the terminal, a file of JSON lines, TensorBoard."""

import json
import os
import pathlib
import re
import sys
import time
from typing import Any

import keras
from absl import logging

from trainers.shared import workdir
from trainers.shared.files import atomic_file


class Bar:
    """A progress bar with the loss, for a terminal, and a line for each evaluation."""

    def __init__(self, num_steps: int) -> None:
        self._bar = keras.utils.Progbar(num_steps, unit_name="step", stateful_metrics=["loss"], interval=0.2)
        self._begin: int | None = None

    def progress(self, step: int, loss: float) -> None:
        if self._begin is None:
            self._begin = step - 1
        self._bar.update(step, [("loss", loss)])

    def write(self, step: int, scalars: dict[str, float]) -> None:
        if "validation/bits_per_byte" in scalars:
            sys.stdout.write("\n" + line(step, scalars) + "\n")
            sys.stdout.flush()


class Lines:
    """A line of text for each report, for a log."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._begin: tuple[int, float] | None = None

    def progress(self, step: int, loss: float) -> None:
        if self._begin is None:
            self._begin = step, time.monotonic()

    def write(self, step: int, scalars: dict[str, float]) -> None:
        remaining = self._remaining(step) if "loss" in scalars else ""
        logging.info("%s", line(f"{step}/{self._num_steps}", scalars) + remaining)

    def _remaining(self, step):
        first, since = self._begin or (step, 0.0)
        if step <= first or step >= self._num_steps:
            return ""
        seconds = round((time.monotonic() - since) / (step - first) * (self._num_steps - step))
        return f", {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


LAYERS = {"routing": "centroids", "span": "span"}  # kinds of scalars per layer, with their displayed names


def line(step: int | str, scalars: dict[str, float]) -> str:
    """Returns the scalars of a report as one line of text; of scalars per layer, KIND/PATH/NAME, the means."""
    shown: dict[str, float] = {}
    per_layer: dict[str, list[float]] = {}
    for name, value in scalars.items():
        kind, _, rest = name.partition("/")
        if kind in LAYERS:
            per_layer.setdefault(f"{LAYERS[kind]} {rest.rpartition('/')[2]}", []).append(value)
        else:
            shown[re.sub("[/_]", " ", name)] = value
    shown |= {name: sum(values) / len(values) for name, values in per_layer.items()}
    return f"step {step}: " + ", ".join(f"{name} {value:.5g}" for name, value in shown.items())


class JsonLines:
    """A file with one JSON object for each report, which a resumed run continues.

    Args:
        path: the file.
        start_step: reports of later steps, written by a run that was killed, are removed.
    """

    def __init__(self, path: pathlib.Path, start_step: int) -> None:
        self._path = path
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            with atomic_file(path) as temporary:
                temporary.write_text(
                    "".join(f"{row}\n" for row in lines if _step_of(row) <= start_step), encoding="utf-8"
                )

    def progress(self, step: int, loss: float) -> None:
        pass

    def write(self, step: int, scalars: dict[str, float]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **scalars}) + "\n")


def _step_of(row):
    try:
        return json.loads(row)["step"]
    except (ValueError, KeyError):
        return float("inf")  # A line that was being written when the run was killed.


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: str | os.PathLike) -> None:
        import tensorflow as tf

        self._writer = tf.summary.create_file_writer(str(folder))

    def progress(self, step: int, loss: float) -> None:
        pass

    def write(self, step: int, scalars: dict[str, float]) -> None:
        import tensorflow as tf

        with self._writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self._writer.flush()


def open_writers(folder: pathlib.Path, num_steps: int, start_step: int) -> list[Any]:
    """Returns the writers of a run: a bar on a terminal or lines in a log, and the files in its work folder."""
    shown = Bar(num_steps) if sys.stdout.isatty() else Lines(num_steps)
    return [shown, JsonLines(folder / workdir.METRICS, start_step), TensorBoard(folder / workdir.TENSORBOARD)]
