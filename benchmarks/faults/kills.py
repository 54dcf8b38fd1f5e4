"""Trainings that are killed, and started again until they are done."""

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

BYTES = (0, 200)  # how much of a file is there when it is killed: nothing, or its begin


def random_moments(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a training at a random moment, the preparation of its data included, and start it again."""
    for number in range(count):
        folder = lab.new(f"killed-{number}")
        options = {"data_dir": folder / "data"}
        after = _kill(lab, folder / "run", (number + lab.random.random()) / count, **options)
        yield Trial(f"killed after {after:.1f} s", lab.resumed(folder / "run", **options))
        shutil.rmtree(folder)


def on_jax(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a training on JAX as `random_moments` does."""
    return random_moments(Lab(lab.folder / "jax", environment={"KERAS_BACKEND": "jax"}), count)


def at_address(lab: Lab, count: int) -> Iterator[Trial]:
    """Kill a training with a run directory at an address, and resume it on another machine."""
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
    """Start a training, kill it after a share of the time that a whole one takes, and return the seconds."""
    after = lab.seconds * share
    process = lab.start(workdir, **options)
    time.sleep(after)
    process.kill()
    process.communicate()
    return after


def file_kinds(lab: Lab) -> list[tuple[str, str, int]]:
    """Returns the files that the undisturbed run writes: what each is called, a pattern, and which of these it is.

    Of names that differ in numbers alone there are the first and the last.
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
    """Kills a training while it writes a file, each of every kind in turn, before and in the middle of it."""
    cases = [(kind, size) for size in BYTES for kind in file_kinds(lab)]
    for number, ((name, pattern, which), size) in enumerate(cases[:count]):
        folder = lab.new(f"writing-{number}")
        options = {"data_dir": folder / "data"}
        fault = {"FAULT": "kill", "FAULT_FILE": pattern, "FAULT_NUMBER": str(which), "FAULT_BYTES": str(size)}
        ended = lab.run(folder / "run", fault=fault, **options)
        title = f"killed at {name} after {size} bytes"
        if not was_killed(ended):  # a file so small that it was complete
            title += f", ended by itself with status {ended.status}"
        yield Trial(title, lab.resumed(folder / "run", **options))
        shutil.rmtree(folder)


def two_workers(lab: Lab, count: int) -> Iterator[Trial]:
    """Kills one of two workers of a run at a random moment, then what is left of it, and starts both again."""
    changes = ["--config.model.dropout=0.0"]
    alone = lab.new("workers-alone")
    begin = time.monotonic()
    problem = _together(lab, alone, changes, None)
    seconds = time.monotonic() - begin
    yield Trial("two workers, left alone", problem)
    for number in range(count - 1):
        folder = lab.new(f"workers-{number}")
        after = seconds * (number + lab.random.random()) / (count - 1)
        _together(lab, folder, changes, (number % 2, after))
        problem = _together(lab, folder, changes, None)
        if problem is None and arrays_of(folder) != arrays_of(alone):
            problem = "other bits than two workers that were left alone"
        yield Trial(f"worker {number % 2} killed after {after:.1f} s", problem)


def _together(lab, folder, changes, kill):
    """Runs two workers; `kill` says which is killed, and after how many seconds. Returns what is wrong, or None."""
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
        except subprocess.TimeoutExpired:  # it waits for the other one, as a scheduler would see
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
    """Starts a second training in a run directory while one runs there: it is refused, and the first goes on."""
    for number in range(count):
        folder = lab.new(f"trainers-{number}")
        first = lab.start(folder)
        begin = time.monotonic()
        while not (folder / "train.lock").exists() and first.poll() is None:
            time.sleep(0.05)
        time.sleep(lab.seconds * 0.2 * lab.random.random())
        first.send_signal(signal.SIGSTOP)  # lest it be done before the second has begun
        second = lab.run(folder)
        first.send_signal(signal.SIGCONT)
        problem = None if second.is_clear and "no other training runs" in second.said else f"the second: {second}"
        ended = end(first, begin)
        if ended.status:
            problem = f"the first: {ended}"
        yield Trial(f"two trainers, {number}", problem or lab.difference(folder))
