"""Interruption of runs and evaluations, and comparison of checkpoints."""

import os
import signal
import zipfile

from tf_sparse_attention.trainers.shared import callbacks, evaluation, training, workdir
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


def check_resumed_run(config, folder, monkeypatch):
    """Check that a run of 7 steps which is stopped after step 5 and resumed has the weights of a whole run.

    Returns:
        The directory of the resumed run.
    """
    config.train.num_steps = 7
    folders = folder / "whole", folder / "stopped"
    training.train(config, folders[0])
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "StopOnSignal", SignalAt)
        assert training.train(config, folders[1]).signal == signal.SIGTERM
    training.train(config, folders[1])
    assert arrays_of(folders[0], 7) == arrays_of(folders[1], 7)
    return folders[1]


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
