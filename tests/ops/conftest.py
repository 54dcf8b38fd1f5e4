"""A process on the JAX backend for each check of `jax_worker.py` that a test asks for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run_jax_worker():
    """Function that runs `jax_worker.py` on the JAX backend for a check and returns its result."""
    pytest.importorskip("jax")

    def run(check):
        environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.ops.jax_worker", check]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def on_jax(run_jax_worker):
    """Results of the checks of `jax_worker.py`, by name; each runs when it is first asked for.

    Test processes that run beside each other thus do not all run all of them.
    """

    class Results(dict):
        def __missing__(self, check):
            self[check] = run_jax_worker(check)
            return self[check]

    return Results()
