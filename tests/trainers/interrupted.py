"""Runs and evaluations that are stopped in between, and what tells whether they ended as those that were not."""

import functools
import os
import signal
import zipfile

from tf_sparse_attention.trainers.shared import callbacks, scoring, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints


class SignalAt(callbacks.StopOnSignal):
    """Gets a signal after step 5, which is no multiple of anything."""

    def on_steps_end(self, before, logs):
        if self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_steps_end(before, logs)


def arrays_of(folder, step):
    """The content of a checkpoint in its order, without the metadata; names of layers count on within a process."""
    with zipfile.ZipFile(Checkpoints(folder / workdir.CHECKPOINTS).path(step)) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".npy")]


def stop_evaluation(monkeypatch, chunk, call):
    """Stop an evaluation, which saves its sums after each `chunk` batches, once: in its `call`-th chunk.

    Returns:
        List to which the batches of each chunk are added.
    """
    predict, calls = scoring.Scorer.predict, []

    def stop_once(self, *arguments, **options):
        calls.append(options["steps"])
        if len(calls) == call:
            raise KeyboardInterrupt
        return predict(self, *arguments, **options)

    monkeypatch.setattr(scoring, "sum_batches", functools.partial(scoring.sum_batches, chunk=chunk))
    monkeypatch.setattr(scoring.Scorer, "predict", stop_once)
    return calls
