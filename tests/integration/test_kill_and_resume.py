"""Training processes that are killed at any moment and started again end as one that was left alone."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_STEPS = 24
# Dropout and moving centroids in both of two layers; a checkpoint every third step.
SETTINGS = {
    "num_steps": NUM_STEPS,
    "log_every": 1,
    "evaluate_every": 10,
    "checkpoint_every": 3,
    "evaluation_windows": 2,
}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Function that gives the command line of a run: `command(folder, num_steps=5)`."""
    text = tmp_path_factory.mktemp("text")
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(2, 7))) for _ in range(40)]
    for split, count in {"train": 4000, "validation": 100}.items():
        (text / split).mkdir()
        (text / split / "a.txt").write_text(" ".join(generator.choices(words, k=count)))
    data_dir = tmp_path_factory.mktemp("data")

    def make(folder, program="tf_sparse_attention.trainers.train", **changes):
        settings = [f"--config.train.{name}={value}" for name, value in (SETTINGS | changes).items()]
        data = [f"--config.data.path={text}", f"--config.data.data_dir={data_dir}"]
        program = [sys.executable, "-m", program, "--config=demo:tiny"]
        return [*program, f"--workdir={folder}", *data, *settings]

    return make


def start(command, backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def run(command, backend):
    """Run a command to its end and return its exit status and what it said."""
    process = start(command, backend)
    said = process.communicate()[1]
    return process.returncode, said


def run_until(command, backend, step, number):
    """Run a command, sends a signal once it reports a step; return the status, the first step and what it said."""
    process = start(command, backend)
    said, first = [], None
    for row in process.stderr:
        said.append(row)
        reported = re.search(rf"step (\d+)/{NUM_STEPS}: loss", row)
        if reported:
            first = int(reported[1]) if first is None else first
            if int(reported[1]) >= step:
                process.send_signal(number)
                break
    said.append(process.communicate()[1])
    return process.returncode, first, "".join(said)


def arrays_of(folder):
    """Every array of the last checkpoint, by name."""
    with zipfile.ZipFile(folder / "checkpoints" / f"step_{NUM_STEPS:09d}.npz") as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".npy")}


def assert_equal_runs(one, other):
    ours, theirs = arrays_of(one), arrays_of(other)
    assert list(ours) == list(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.fixture(scope="module")
def uninterrupted(command, tmp_path_factory):
    """Function that gives the folder of a run of a backend that was left alone."""
    folders = {}

    def make(backend):
        if backend not in folders:
            folder = tmp_path_factory.mktemp(f"uninterrupted-{backend}")
            status, said = run(command(folder), backend)
            assert status == 0, said
            folders[backend] = folder
        return folders[backend]

    return make


@pytest.mark.large
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_run_killed_again_and_again_ends_with_the_same_bits(command, uninterrupted, tmp_path, backend):
    pytest.importorskip(backend)
    for step in (1, 8, 11, 21):  # 8 is two steps after a checkpoint, 11 one after an evaluation
        status, _, said = run_until(command(tmp_path), backend, step, signal.SIGKILL)
        assert status == -signal.SIGKILL, said
    status, said = run(command(tmp_path), backend)
    assert status == 0, said
    assert f"Trained to step {NUM_STEPS}" in said
    assert_equal_runs(tmp_path, uninterrupted(backend))


@pytest.mark.large
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_ctrl_c_and_preemption_leave_a_checkpoint_of_the_step_they_came_in(command, uninterrupted, tmp_path, backend):
    pytest.importorskip(backend)
    begin = 0
    for step, number in ((5, signal.SIGINT), (13, signal.SIGTERM)):
        status, first, said = run_until(command(tmp_path), backend, step, number)
        assert status == 128 + number, said
        assert first == begin + 1
        stopped = re.search(
            rf"Stopped by {number.name} at step (\d+) with a checkpoint; the same command resumes", said
        )
        assert stopped, said
        begin = int(stopped[1])
        assert (tmp_path / "checkpoints" / f"step_{begin:09d}.npz").exists()
    status, said = run(command(tmp_path), backend)
    assert status == 0, said
    assert_equal_runs(tmp_path, uninterrupted(backend))


@pytest.mark.large
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_run_at_an_address_killed_while_copying_resumes_elsewhere_with_the_same_bits(
    command, uninterrupted, tmp_path, backend, monkeypatch
):
    pytest.importorskip(backend)
    bucket = tmp_path / "bucket" / "run"
    remote = command(f"disk://{bucket}", "tests.trainers.killed_copying")
    for step, first in ((3, 0), (9, 0), (18, 6)):
        monkeypatch.setenv("TMPDIR", str(tmp_path / f"machine-{step}"))
        (tmp_path / f"machine-{step}").mkdir()
        monkeypatch.setenv("KILLED_COPYING", f"step_{step:09d}.npz")
        status, said = run(remote, backend)
        assert status == -signal.SIGKILL, said
        # Nothing is there at first; later the newest complete upload counts.
        assert f"from step {first} to {NUM_STEPS}" in said
    monkeypatch.delenv("KILLED_COPYING")
    status, said = run(remote, backend)
    assert status == 0, said
    assert f"from step 15 to {NUM_STEPS}" in said
    assert_equal_runs(bucket, uninterrupted(backend))
    metrics = [folder / "metrics.jsonl" for folder in (bucket, uninterrupted(backend))]
    steps = [[json.loads(row)["step"] for row in path.read_text().splitlines()] for path in metrics]
    assert steps[0] == steps[1]
    assert sorted(path.name for path in bucket.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "model.keras",
        "tensorboard",
    ]
    kept = sorted(path.name for path in (bucket / "checkpoints").iterdir())
    assert kept == [f"step_{step:09d}.npz" for step in (18, 21, 24)]
