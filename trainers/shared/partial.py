"""An evaluation that can be killed and goes on: what is scored so far, on disk and on the screen."""

import json
import sys
import time

import keras
from absl import logging

from trainers.shared.files import write_json

SECONDS_BETWEEN_LINES = 30


class Partial:
    """The sums of an evaluation so far, in a file that is there while the evaluation runs.

    Args:
        path: The file, a `pathlib.Path`.
        identity: Plain data that says of what the sums are; those of anything else are not gone on with.
    """

    def __init__(self, path, identity):
        self._path = path
        self._identity = json.loads(json.dumps(identity))

    def load(self):
        """Returns the number of batches that are done and their sums, a dictionary; 0 and None at the beginning."""
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0, None
        if saved.get("identity") != self._identity:
            return 0, None
        logging.info("Going on after %d batches, as %s has them.", saved["batches"], self._path)
        return saved["batches"], saved["sums"]

    def save(self, batches, sums):
        """Writes the sums after a number of batches."""
        write_json(self._path, {"identity": self._identity, "batches": batches, "sums": sums})

    def remove(self):
        """Removes the file, once the figures are written down."""
        self._path.unlink(missing_ok=True)


class Progress(keras.callbacks.Callback):
    """A bar on a terminal, or a line now and then in a log, over several calls of `predict`.

    Args:
        num_batches: Of the whole evaluation.
    """

    def __init__(self, num_batches):
        super().__init__()
        self._num_batches = num_batches
        self._bar = keras.utils.Progbar(num_batches, unit_name="batch", interval=0.2) if sys.stderr.isatty() else None
        self._first = self._done = None
        self._since = self._said = time.monotonic()

    def begin(self, first):
        """Tells how many batches are done before the next call of `predict`."""
        self._first = first if self._first is None else self._first
        self._done = first

    def on_predict_batch_end(self, batch, logs=None):
        done = self._done + batch + 1
        if self._bar is not None:
            self._bar.update(done)
        elif time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            seconds = round((self._said - self._since) / (done - self._first) * (self._num_batches - done))
            logging.info("batch %d/%d, %d:%02d left", done, self._num_batches, seconds // 60, seconds % 60)
