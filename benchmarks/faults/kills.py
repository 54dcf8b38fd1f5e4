"""Trials that kill a training run and resume it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from benchmarks.faults.lab import Lab, Trial, arrays_of, end, was_killed

BYTES = (0, 200)  # file size at which the process is killed: an empty file, or its first bytes


def random_moments(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a run at a random moment, including the preparation of its data, and resume it."""
    for number in range(count):
        folder = lab.new(f"killed-{number}")
        options = {"data_dir": folder / "data"}
        after = _kill(lab, folder / "run", (number + lab.random.random()) / count, **options)
        yield Trial(f"killed after {after:.1f} s", lab.resumed(folder / "run", **options))
        shutil.rmtree(folder)


def on_jax(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a run on JAX at a random moment and resume it, as in `random_moments`."""
    return random_moments(Lab(lab.folder / "jax", lab.random.randrange(2**32), {"KERAS_BACKEND": "jax"}), count)


def at_address(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a run with a remote run directory, and resume it without the local files, as on another machine."""
    for number in range(count):
        folder = lab.new(f"address-{number}")
        address, machines = f"disk://{folder}/bucket/run", []
        for name in ("first", "second"):
            (folder / name).mkdir()
            places = {"TSA_CACHE_DIR": str(folder / name), "TMPDIR": str(folder / name)}
            machines.append({"fault": {"FAULT": "address"}, "environment": places})
        after = _kill(lab, address, (number + lab.random.random()) / count, **machines[0])
        problem = lab.resumed(folder / "bucket" / "run", address, **machines[1])
        yield Trial(f"killed after {after:.1f} s", problem)
        shutil.rmtree(folder)


def _kill(lab, workdir, share, **options):
    """Start a run, kill it after a fraction of the undisturbed run's duration, and return the seconds."""
    after = lab.seconds * share
    process = lab.start(workdir, **options)
    time.sleep(after)
    process.kill()
    process.communicate()
    return after


def file_kinds(lab: Lab) -> list[tuple[str, str, int]]:
    """Return the files that the undisturbed run writes: (name, pattern, index among the matches of the pattern).

    Of files whose names differ only in numbers, the first and the last are returned.
    """
    kinds: dict[str, list[tuple[str, str, int]]] = {}
    seen: dict[str, int] = {}
    reference = lab.reference
    for line in (lab.folder / "writes").read_text().splitlines():
        if not line.startswith((f"{reference}{os.sep}", f"{lab.data_dir}{os.sep}")):
            continue
        pattern = f"*/{re.sub(r'[.][0-9a-f]+[.]incomplete', '.*.incomplete', os.path.basename(line))}"
        number = seen[pattern] = seen.get(pattern, -1) + 1
        name = pattern.strip("*/").removeprefix(".").replace(".*.incomplete", "")
        kinds.setdefault(re.sub(r"\d+", "N", name), []).append((f"{name} ({number})", pattern, number))
    return [place for places in kinds.values() for place in dict.fromkeys((places[0], places[-1]))]


def while_writing(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a run before and while it writes a file, for each kind of file in turn, and resume it."""
    cases = [(kind, size) for size in BYTES for kind in file_kinds(lab)]
    for number, ((name, pattern, which), size) in enumerate(cases[:count]):
        folder = lab.new(f"writing-{number}")
        options = {"data_dir": folder / "data"}
        fault = {"FAULT": "kill", "FAULT_FILE": pattern, "FAULT_NUMBER": str(which), "FAULT_BYTES": str(size)}
        ended = lab.run(folder / "run", fault=fault, **options)
        title = f"killed at {name} after {size} bytes"
        if not was_killed(ended):  # the file was smaller than the limit
            title += f", exited with status {ended.status}"
        yield Trial(title, lab.resumed(folder / "run", **options))
        shutil.rmtree(folder)


def two_workers(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill one of two workers of a run at a random moment, then the other worker, and restart both."""
    changes = ["--config.model.dropout=0.0"]
    alone = lab.new("workers-alone")
    begin = time.monotonic()
    problem = _together(lab, alone, changes, None)
    seconds = time.monotonic() - begin
    yield Trial("two undisturbed workers", problem)
    for number in range(count - 1):
        folder = lab.new(f"workers-{number}")
        after = seconds * (number + lab.random.random()) / (count - 1)
        _together(lab, folder, changes, (number % 2, after))
        problem = _together(lab, folder, changes, None)
        if problem is None and arrays_of(folder) != arrays_of(alone):
            problem = "other bits than two undisturbed workers"
        yield Trial(f"worker {number % 2} killed after {after:.1f} s", problem)


def _together(lab, folder, changes, kill):
    """Run two workers. `kill` is (index, seconds) of a worker to kill, or None. Return the problem, or None."""
    cluster = {"worker": [f"localhost:{port}" for port in _free_ports(2)]}
    begin, processes = time.monotonic(), []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        processes.append(lab.start(folder, changes=changes, environment={"TF_CONFIG": json.dumps(task)}))
    if kill is not None:
        time.sleep(kill[1])
        processes[kill[0]].kill()
        try:
            processes[1 - kill[0]].wait(timeout=10)
        except subprocess.TimeoutExpired:  # it waits for the killed worker: end it, as a scheduler would
            processes[1 - kill[0]].send_signal(signal.SIGKILL)
    ended = [end(process, begin) for process in processes]
    wrong = [each for each in ended if each.status != 0]
    return str(wrong[0]) if wrong else None


def _free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def two_trainers(lab: Lab, count: int) -> Iterator[Trial]:
    """Start a second training in the same run directory. It must exit with an error, and the first must finish."""
    for number in range(count):
        folder = lab.new(f"trainers-{number}")
        first = lab.start(folder)
        begin = time.monotonic()
        while not (folder / "train.lock").exists() and first.poll() is None:
            time.sleep(0.05)
        time.sleep(lab.seconds * 0.2 * lab.random.random())
        first.send_signal(signal.SIGSTOP)  # so that it does not finish before the second starts
        second = lab.run(folder)
        first.send_signal(signal.SIGCONT)
        problem = None if second.is_clear and "no other training runs" in second.said else f"the second: {second}"
        ended = end(first, begin)
        if ended.status != 0:
            problem = f"the first: {ended}"
        yield Trial(f"two trainers, {number}", problem or lab.difference(folder))
