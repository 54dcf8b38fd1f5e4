"""Two processes train together, over a real cluster on this machine, what one trains alone."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.conftest import ROOT

ARGUMENTS = ["--config=trainers/configs/demo.py:tiny", "--config.model.dropout=0.0", "--config.train.num_steps=10"]


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def start(folder, name, **variables):
    """Starts a run in a work folder and returns its process; what it says goes to a file beside the folder."""
    command = [sys.executable, "-m", "trainers.train", *ARGUMENTS, f"--workdir={folder}"]
    with open(folder.with_name(f"{name}.log"), "w") as log:
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}, stderr=log, stdout=log)


def final_state(folder):
    with np.load(folder / "checkpoints" / "step_000000010.npz") as archive:
        return {name: archive[name] for name in archive.files if name != "metadata.json"}


@pytest.mark.large
def test_two_workers_train_as_one_device_does(tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    runs = {"alone": start(tmp_path / "alone", "alone")}
    for index in range(2):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        runs[f"worker_{index}"] = start(tmp_path / "together", f"worker_{index}", TF_CONFIG=config)
    for name, process in runs.items():
        assert process.wait(timeout=300) == 0, (tmp_path / f"{name}.log").read_text()
    expected, found = final_state(tmp_path / "alone"), final_state(tmp_path / "together")
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5, err_msg=name)
