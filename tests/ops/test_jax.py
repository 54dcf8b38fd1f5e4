"""The sparse attentions equal their dense twins on JAX too, compiled, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
ROOT = Path(__file__).parents[2]
FAMILIES = {"local", "nearest", "separate", "random", "top_k"}


def run_worker(module, *arguments):
    """Runs a module of this folder on the JAX backend and returns the JSON of its last line."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"tests.ops.{module}", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_eight_compiled_programs_equal_dense_attention_200_times_each_family():
    counts = run_worker("jax_worker", "fixed")
    assert counts.keys() == FAMILIES
    assert min(counts.values()) >= 200


@pytest.mark.large
def test_200_programs_of_any_shape_equal_dense_attention():
    counts = run_worker("jax_worker", "free")
    assert counts.keys() == FAMILIES
    assert sum(counts.values()) >= 200
