"""What is done to a training, and what counts as survived; `make faults` does it."""

import errno
import os
import re
import subprocess
import sys
import time
import zipfile

import pytest

from benchmarks.faults import lab
from tests.conftest import ROOT

HOOK = """
import signal
from benchmarks.faults import hooked
hooked.limit_at("*/.data.*.incomplete.bin", 1, 10)
{before}
open("other.bin", "wb").write(b"x" * 100)
open(".data.7.incomplete.bin", "wb").write(b"x" * 100)
try:
    open(".data.8.incomplete.bin", "wb", buffering=0).write(b"x" * 10)
    open("after.bin", "wb", buffering=0).write(b"x" * 100)
    open("after.bin", "ab", buffering=0).write(b"x")
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("kills_it", [False, True], ids=["full", "kill"])
def test_nothing_can_be_written_once_a_file_of_a_pattern_is_opened(kills_it, tmp_path):
    code = HOOK.format(before="signal.signal(signal.SIGXFSZ, signal.SIG_DFL)" if kills_it else "")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (tmp_path / "other.bin").stat().st_size == 100 and (tmp_path / "after.bin").stat().st_size == 10
    if kills_it:
        assert lab.was_killed(lab.Ended(process.returncode, "", 0.0))
    else:
        assert process.returncode == 0 and int(process.stdout) == errno.EFBIG


def test_a_run_survived_only_with_the_same_bits_and_nothing_left_behind(tmp_path):
    made, run = lab.Lab(tmp_path), tmp_path / "run"
    for name in ("reference", "run"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "model.keras").touch()
        with zipfile.ZipFile(tmp_path / name / lab.LAST, "w") as archive:
            archive.writestr("a.npy", b"bits")
            archive.writestr("metadata.json", name)
    assert made.difference(run) is None
    (run / ".model.7.incomplete.keras").touch()
    assert "left behind" in made.difference(run)
    with zipfile.ZipFile(run / lab.LAST, "w") as archive:
        archive.writestr("a.npy", b"bats")
    assert made.difference(run) == "1 of 1 arrays have other bits"
    (run / lab.LAST).write_bytes(b"PK")
    assert made.difference(run).startswith("no last checkpoint")


def test_a_process_that_does_not_end_is_named_as_that(tmp_path, monkeypatch):
    made = lab.Lab(tmp_path)
    sleeping = [sys.executable, "-c", "import time; print('begins', flush=True); time.sleep(60)"]
    monkeypatch.setattr(made, "run", lambda workdir: lab.end(lab.start(sleeping, {}), time.monotonic(), seconds=3.0))
    assert re.fullmatch(r"again: no end after \d+ s: begins", made.resumed(tmp_path))
