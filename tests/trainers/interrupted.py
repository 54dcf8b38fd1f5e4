"""Interruption of runs and evaluations, and comparison of checkpoints."""

import os
import signal
import zipfile

from tf_sparse_attention.trainers.shared import callbacks, evaluation, workdir
from tf_sparse_attention.trainers.shared.checkpoints import Checkpoints


class SignalAt(callbacks.StopOnSignal):
    """Receives a signal after step 5, which is not a multiple of any interval of these tests."""

    def on_steps_end(self, before, logs):
        if self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        super().on_steps_end(before, logs)


def arrays_of(folder, step):
    """Return the arrays of a checkpoint in order, without their names: layers are numbered within a process."""
    with zipfile.ZipFile(Checkpoints(folder / workdir.CHECKPOINTS).path(step)) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".npy")]


def stop_evaluation(monkeypatch, chunk, call):
    """Interrupt an evaluation once, in its `call`-th chunk of `chunk` batches. Sums are saved after each chunk.

    Returns:
        List to which the number of batches of each chunk is added.
    """
    predict, calls = evaluation.Scorer.predict, []

    def stop_once(self, *arguments, **options):
        calls.append(options["steps"])
        if len(calls) == call:
            raise KeyboardInterrupt
        return predict(self, *arguments, **options)

    monkeypatch.setattr(evaluation, "BATCHES_PER_SAVE", chunk)
    monkeypatch.setattr(evaluation.Scorer, "predict", stop_once)
    return calls
