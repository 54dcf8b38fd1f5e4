"""Keys, samplers, the loop and generation from a model on JAX: the same checks, in a process with that backend."""

import os
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytest.importorskip("jax")
TESTS = pathlib.Path(__file__).parents[1]
FILES = [f"generation/test_{name}.py" for name in ("random_keys", "samplers", "loop")] + ["models/test_generation.py"]
# JAX compiles every operation of every shape; each of these takes it a few seconds at most.
SHORT = "known_answers or published or different_lengths or state_goes or every_backend or one_pass or modulo"


RUN = """
import sys
import keras
import pytest
assert keras.backend.backend() == "jax"
sys.exit(pytest.main(sys.argv[1:]))
"""


def outcomes_on_jax(folder, *arguments):
    """Runs the files on JAX and returns by file the tests that passed, and why others were skipped; none may fail."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    report = folder / "report.xml"
    command = [sys.executable, "-c", RUN, "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    command += [str(TESTS / name) for name in FILES]
    result = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    passed, skipped = {}, []
    for case in ElementTree.parse(report).iter("testcase"):
        reasons = [found.get("message") for found in case.findall("skipped")]
        skipped += reasons
        if not reasons:
            passed.setdefault(case.get("classname").split(".")[-1], []).append(case.get("name"))
    return passed, skipped


def test_the_main_checks_hold_on_jax(tmp_path):
    passed, skipped = outcomes_on_jax(tmp_path, "-k", SHORT)
    assert not skipped
    assert set(passed) == {pathlib.Path(name).stem for name in FILES}
    names = [name for names in passed.values() for name in names]
    assert not [word for word in SHORT.split(" or ") if not any(word in name for name in names)]


@pytest.mark.large
def test_all_checks_hold_on_jax(tmp_path):
    passed, skipped = outcomes_on_jax(tmp_path)
    assert set(passed) == {pathlib.Path(name).stem for name in FILES}
    assert all("TensorFlow" in reason for reason in skipped), skipped
