"""Partial sums and progress of an evaluation, so that a killed one can be resumed."""

import json
import pathlib
import sys
import time
from typing import Any

import keras
from absl import logging

from tf_sparse_attention.trainers.shared.files import write_json

SECONDS_BETWEEN_LINES = 30


class ResumableSums:
    """The sums of an evaluation so far, in a file that exists while the evaluation runs.

    Args:
        path: the file, a `pathlib.Path`.
        identity: plain data that identifies the evaluation; sums of another one are ignored.
    """

    def __init__(self, path: pathlib.Path, identity: Any) -> None:
        self._path = path
        self._identity = json.loads(json.dumps(identity))

    def load(self) -> tuple[int, dict[str, float] | None]:
        """Returns the number of finished batches and their sums, a dictionary; 0 and None if there are none."""
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            identity, batches, sums = saved["identity"], saved["batches"], saved["sums"]
        except (OSError, ValueError, KeyError, TypeError):  # not there, or damaged: all is scored again
            return 0, None
        if identity != self._identity:
            return 0, None
        logging.info("Resuming after %d batches from %s.", batches, self._path)
        return batches, sums

    def save(self, batches: int, sums: dict[str, float]) -> None:
        """Writes the number of finished batches and their sums."""
        write_json(self._path, {"identity": self._identity, "batches": batches, "sums": sums})

    def remove(self) -> None:
        """Removes the file, once the metrics are written."""
        self._path.unlink(missing_ok=True)


class Progress(keras.callbacks.Callback):
    """A bar on a terminal, or lines in a log, over several calls of `predict`.

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
