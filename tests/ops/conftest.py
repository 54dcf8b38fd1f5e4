"""One process on the JAX backend serves all tests of this folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run_jax_worker():
    """Function that runs `jax_worker.py` on the JAX backend with some arguments and returns what it printed."""
    pytest.importorskip("jax")

    def run(*arguments):
        environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.ops.jax_worker", *arguments]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def on_jax(run_jax_worker):
    """Results of all checks of `jax_worker.py` but the slow one, by name."""
    return run_jax_worker("families", "causality", "gather", "quadratic", "clusters")
