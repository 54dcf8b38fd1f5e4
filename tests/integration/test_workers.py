"""Training processes that are killed or stopped resume, and several over a real cluster train what one trains alone."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.faults import lab
from tests.conftest import ROOT

pytestmark = pytest.mark.large
NUM_STEPS = 60  # of runs that get a signal in between; others end before a difference of rounding grows
SETTINGS = {"num_steps": NUM_STEPS, "log_every": 1, "evaluate_every": 20, "checkpoint_every": 10}
SETTINGS |= {"evaluation_windows": 8}
FEW_STEPS = {"num_steps": 10, "evaluate_every": 10, "dropout": 0.0}
LIMIT = 300  # seconds for a run, of which most is compiling
ENDS_WITHIN = 60  # seconds, where a worker is gone


def place_in_cluster(backend, count):
    """Return the variables that tell each of some processes where the others are."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        ports = [server.getsockname()[1] for server in servers]
    if backend == "jax":
        address = f"localhost:{ports[0]}"
        names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
        return [dict(zip(names, (address, str(count), str(index)), strict=True)) for index in range(count)]
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    tasks = ({"type": "worker", "index": index} for index in range(count))
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


class Runs:
    """Starts the processes of runs on a small text, in folders of their own; kills what is left in the end."""

    def __init__(self, folder):
        self._folder, self._started = folder, []
        lab.write_text(folder / "text")

    def start(self, name, backend, count=1, devices=1, dropout=0.1, program=None, workdir=None, **changes):
        """Start a run of some processes, each with some devices, and return these; see `said`."""
        jit_compile = backend == "jax" or count * devices == 1  # replicas of TensorFlow cannot be compiled
        settings = {**SETTINGS, "num_logical_cpus": devices, "jit_compile": jit_compile, **changes}
        command = [sys.executable, "-m", program or "tf_sparse_attention.trainers.train", "--config=demo:tiny"]
        command += [f"--config.train.{key}={value}" for key, value in settings.items()]
        command += [f"--config.data.path={self._folder / 'text'}", f"--config.data.data_dir={self._folder / 'data'}"]
        command += ["--config.data.batch_size=4", f"--config.model.dropout={dropout}", "--config.model.num_layers=1"]
        command += [f"--workdir={workdir or self._folder / name}"]
        common = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        # Most of the time is compiling, and these steps are small.
        common |= {"XLA_FLAGS": os.environ.get("XLA_FLAGS") or "--xla_backend_optimization_level=0"}
        places = [{}] if count == 1 else place_in_cluster(backend, count)
        processes = []
        for index, place in enumerate(places):
            with open(self._log(name, index), "w") as log:
                environment = {**os.environ, **common, **place}
                processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log))
        self._started += processes
        return processes

    def finish(self, name, *arguments, **keywords):
        """Run processes to their end, which has to be a good one, and return their folder."""
        statuses = [process.wait(timeout=LIMIT) for process in self.start(name, *arguments, **keywords)]
        assert set(statuses) == {0}, self.said(name)
        return self._folder / name

    def wait_for_step(self, name, step):
        """Wait until a run has reported a step."""
        begin = time.monotonic()
        while not any(int(found) >= step for found in re.findall(rf"step (\d+)/{NUM_STEPS}: loss", self.said(name))):
            assert time.monotonic() < begin + LIMIT, self.said(name)
            time.sleep(0.05)

    def said(self, name, index=0):
        return self._log(name, index).read_text()

    def _log(self, name, index):
        return self._folder / f"{name}.{index}.log"

    def end(self):
        for process in self._started:
            process.kill()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    runs = Runs(tmp_path_factory.mktemp("workers"))
    yield runs
    runs.end()


@pytest.fixture(scope="module")
def made(runs):
    """Function that returns the folder of a run that was left alone, made once: `made(backend, **as_of_start)`."""
    folders = {}

    def make(backend, **settings):
        pytest.importorskip(backend)
        name = "-".join(["alone", backend, *(f"{key}{value}" for key, value in settings.items())])
        if name not in folders:
            folders[name] = runs.finish(name, backend, **settings)
        return folders[name]

    return make


def state_of(folder):
    """Return weights, centroids and the state of the optimizer after the last step."""
    with np.load(max((folder / "checkpoints").glob("step_*.npz"))) as archive:
        return {name: archive[name] for name in archive.files if name.startswith(("model/", "optimizer/"))}


def reports_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in rows]


def losses_of(folder):
    return {row["step"]: row["loss"] for row in reports_of(folder) if "loss" in row}


def assert_same_state(found, expected, tolerance):
    found, expected = state_of(found), state_of(expected)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("backend", "count", "devices"),
    [("tensorflow", 2, 1), ("tensorflow", 4, 1), ("jax", 2, 1), ("jax", 4, 1), ("jax", 1, 2), ("jax", 1, 4)],
)
def test_workers_and_devices_train_as_one_device_does(runs, made, backend, count, devices):
    alone = made(backend, **FEW_STEPS)
    together = runs.finish(f"{backend}-{count}-{devices}", backend, count, devices, **FEW_STEPS)
    reports = reports_of(together), reports_of(alone)
    assert len(reports[0]) == 11 and "validation/loss" in reports[0][-1]
    for found, expected in zip(*reports, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_same_state(together, alone, 1e-4)


@pytest.mark.parametrize(("count", "devices", "parts"), [(2, 1, 2), (2, 2, 2), (2, 2, 4)])
def test_a_model_split_over_processes_is_trained_and_resumed(runs, made, count, devices, parts):
    alone, name = made("jax", **FEW_STEPS), f"split-{count}-{devices}-{parts}"
    folder = runs.finish(name, "jax", count, devices, **{**FEW_STEPS, "num_steps": 6}, model_parallel=parts)
    assert len(list((folder / "checkpoints").glob("step_000000006.part_*.npz"))) == count
    runs.finish(name, "jax", count, devices, **FEW_STEPS, model_parallel=parts)
    assert losses_of(folder) == pytest.approx(losses_of(alone), rel=1e-4)
    if parts > devices:  # without one of its files the checkpoint of step 10 does not count
        (folder / "checkpoints" / "step_000000010.part_1.npz").unlink()
        runs.finish(name, "jax", count, devices, **FEW_STEPS, model_parallel=parts)
        assert "is damaged and skipped" in runs.said(name) and "from step 6 to 10" in runs.said(name)
    # The checkpoint of a split model is that of any other run: one device continues it, and parts that of one device.
    one, further = (runs.finish(each, "jax", **{**FEW_STEPS, "num_steps": 12}) for each in (name, "further"))
    assert_same_state(one, further, 1e-4)
    runs.finish(name, "jax", count, devices, **{**FEW_STEPS, "num_steps": 14}, model_parallel=parts)
    further = runs.finish("further", "jax", **{**FEW_STEPS, "num_steps": 14})
    assert losses_of(folder) == pytest.approx(losses_of(further), rel=1e-4)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_if_a_worker_is_killed_the_others_end_and_all_resume_to_the_same_bits(runs, made, backend, count):
    alone, name = made(backend, count=count), f"{backend}-{count}-killed"
    for killed, step in ((0, 1), (1, 13), (0, 21), (0, 33)):  # before a checkpoint, after it, after an evaluation
        processes = runs.start(name, backend, count)
        runs.wait_for_step(name, step)
        process = processes.pop(killed % count)
        process.kill()
        assert process.wait() == -signal.SIGKILL, runs.said(name)
        assert all(other.wait(timeout=ENDS_WITHIN) != 0 for other in processes)
    assert_same_state(runs.finish(name, backend, count), alone, 0)
    assert f"Trained to step {NUM_STEPS}" in runs.said(name)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_if_one_worker_gets_a_signal_all_stop_at_one_step_with_a_checkpoint(runs, made, backend, count):
    alone, name, step = made(backend, count=count), f"{backend}-{count}-asked", 0
    for asked, number in ((1, signal.SIGTERM), (0, signal.SIGINT)):
        processes = runs.start(name, backend, count)
        runs.wait_for_step(name, step + 13)
        assert f"from step {step} to {NUM_STEPS}" in runs.said(name)
        processes[asked % count].send_signal(number)
        # SIGTERM is the only signal of JAX's preemption service, which several processes use.
        shown = signal.SIGTERM if backend == "jax" and count > 1 else number
        assert [process.wait(timeout=LIMIT) for process in processes] == [128 + shown] * count
        expected = rf"by {shown.name} at step (\d+) with a checkpoint"
        (step,) = {int(re.search(expected, runs.said(name, index))[1]) for index in range(count)}
    assert_same_state(runs.finish(name, backend, count), alone, 0)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_run_at_an_address_killed_while_copying_resumes_elsewhere_with_the_same_bits(
    runs, made, backend, tmp_path, monkeypatch
):
    alone, bucket, name = made(backend, count=1), tmp_path / "bucket" / "run", f"{backend}-remote"
    remote = {"program": "tests.trainers.killed_copying", "workdir": f"disk://{bucket}"}
    for step, first in ((10, 0), (30, 0), (50, 20)):
        monkeypatch.setenv("TMPDIR", str(tmp_path / f"machine-{step}"))
        (tmp_path / f"machine-{step}").mkdir()
        monkeypatch.setenv("KILLED_COPYING", f"step_{step:09d}.npz")
        (process,) = runs.start(name, backend, **remote)
        assert process.wait(timeout=LIMIT) == -signal.SIGKILL, runs.said(name)
        # Nothing is there at first; later the newest complete upload counts.
        assert f"from step {first} to {NUM_STEPS}" in runs.said(name)
    monkeypatch.delenv("KILLED_COPYING")
    runs.finish(name, backend, **remote)
    assert f"from step 40 to {NUM_STEPS}" in runs.said(name)
    assert_same_state(bucket, alone, 0)
    assert [row["step"] for row in reports_of(bucket)] == [row["step"] for row in reports_of(alone)]
    assert {path.name for path in bucket.iterdir()} == {"checkpoints", "metrics.jsonl", "model.keras", "tensorboard"}
    kept = sorted(path.name for path in (bucket / "checkpoints").iterdir())
    assert kept == [f"step_{step:09d}.npz" for step in (40, 50, 60)]


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_run_resumes_with_fewer_or_more_replicas(runs, made, backend):
    alone, name = made(backend, **FEW_STEPS), f"{backend}-elastic"
    begun = runs.finish(name, backend, 2, **{**FEW_STEPS, "num_steps": 6})
    shutil.copytree(begun, begun.with_name(f"{name}-4"))
    for further, devices in ((name, 1), (f"{name}-4", 4)):
        folder = runs.finish(further, backend, 1, devices, **FEW_STEPS)
        assert f"The checkpoint was written with 2 replicas, and this run has {devices}" in runs.said(further)
        assert_same_state(folder, alone, 1e-4)
