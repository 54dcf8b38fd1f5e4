"""Keys, samplers, the loop and generation from a model on JAX: the same checks, in a process with that backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
TESTS = Path(__file__).parents[1]
FILES = [f"generation/test_{name}.py" for name in ("random_keys", "samplers", "loop")] + ["models/test_generation.py"]
# JAX compiles every operation of every shape; each of these takes it a few seconds at most.
SHORT = "known_answers or published or different_lengths or state_goes or every_backend or one_pass or modulo"


def run_on_jax(*arguments):
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    command += [str(TESTS / name) for name in FILES]
    return subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)


def test_the_main_checks_hold_on_jax():
    result = run_on_jax("-k", SHORT)
    assert result.returncode == 0, result.stdout
    assert "26 passed" in result.stdout


@pytest.mark.large
def test_all_checks_hold_on_jax():
    result = run_on_jax()
    assert result.returncode == 0, result.stdout
