"""Resuming a run with a model that is divided among another number of JAX devices."""

import os
import subprocess
import sys

import pytest

from tests.jax_worker import ROOT

RUNS = """
import pathlib, sys
import numpy as np
from tf_sparse_attention.trainers.configs import demo
from tf_sparse_attention.trainers.shared import training, workdir

text, folder = map(pathlib.Path, sys.argv[1:])
config = demo.get_config("tiny")
config.data.update(path=str(text), data_dir=str(folder / "data"))
# Without biases: those of keys have no gradient but rounding, which the optimizer would make steps of.
heads = [{**part, "use_bias": False} for part in config.model.attention]
config.model.update(num_layers=1, dropout=0.0, attention=heads)
config.train.update(log_every=1, evaluate_every=0, checkpoint_every=1, deterministic=False, num_logical_cpus=2)
weights = []
for run, parts in {"whole": (1, 1), "split": (2, 2), "one after the other": (2, 1), "back": (1, 2)}.items():
    for steps, model_parallel in enumerate(parts, start=1):
        config.train.update(num_steps=2 * steps, model_parallel=model_parallel)
        training.train(config, folder / run)
    (folder / run / workdir.MODEL).unlink()  # so that the checkpoint is read
    weights.append(workdir.load_model(folder / run).get_weights())
for other in weights[1:]:
    print(max(np.max(np.abs(a - b)) for a, b in zip(other, weights[0])))
"""


@pytest.mark.full
def test_a_run_on_jax_resumes_with_more_or_fewer_parts_of_the_model(text_folder, tmp_path):
    pytest.importorskip("jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, "-c", RUNS, str(text_folder), str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    differences = [float(difference) for difference in said.split()]
    assert len(differences) == 3
    assert max(differences) < 2e-4  # of weights, after four steps of Adafactor with sums in another order
