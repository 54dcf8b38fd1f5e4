"""The export of a run: the program, and the proof that it asks of what it wrote."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.trainers import untrained_run
from trainers import exporting, workdir

ROOT = Path(__file__).parents[2]


def test_the_program_exports_and_proves_it_whatever_the_backend_of_the_run(tmp_path):
    run = untrained_run.write(tmp_path / "run")
    result = subprocess.run(
        [sys.executable, "-m", "trainers.export", f"--workdir={run}"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    served = tf.saved_model.load(run / "saved_model").signatures["score"](text=tf.constant(["def main():"]))
    ids = workdir.load_tokenizer(run).tokenize("def main():")
    logits = workdir.load_model(run)(np.array([[0, *ids[:-1]]], "int32"))[0]
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits).numpy().sum()
    np.testing.assert_allclose(served["nats"].numpy(), [nats], rtol=1e-5)
    bits = served["bits_per_byte"].numpy()[0]
    assert result.stdout == (
        f"loaded in a process without the library, 'def main():' has {bits:.4f} bits per byte "
        f"({nats:.2f} nats, 11 bytes)\n"
    )
    # The windows of `score` are those of the training.
    assert "consecutive windows of 64," in (run / "saved_model" / "README.md").read_text(encoding="utf-8")


def test_a_saved_model_that_does_not_work_by_itself_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "SCORE_ALONE", "raise ValueError('no such signature')")
    with pytest.raises(RuntimeError, match=r"(?s)The SavedModel in .* does not work by itself:.*no such signature"):
        exporting.score_alone(tmp_path, "a line")
