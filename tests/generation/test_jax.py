"""Keys, samplers and the loop on JAX: the same checks, in a process with that backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
HERE = Path(__file__).parent
# Each of these takes JAX a second or less; it compiles every operation of every shape.
SHORT = "known_answers or published or different_lengths or state_goes or every_backend"


def run_here_on_jax(*arguments):
    files = [str(HERE / name) for name in ("test_random_keys.py", "test_samplers.py", "test_loop.py")]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *files]
    return subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False)


def test_the_main_checks_hold_on_jax():
    result = run_here_on_jax("-k", SHORT)
    assert result.returncode == 0, result.stdout
    assert "17 passed" in result.stdout


@pytest.mark.large
def test_all_checks_hold_on_jax():
    result = run_here_on_jax()
    assert result.returncode == 0, result.stdout
