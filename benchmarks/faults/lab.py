"""Tiny training runs with injected faults, and their comparison with an undisturbed run."""

import functools
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_STEPS = 12
# demo:tiny has dropout and centroids in both layers. There is a checkpoint of the last step.
SETTINGS = {"num_steps": NUM_STEPS, "log_every": 2, "evaluate_every": 6, "checkpoint_every": 3, "evaluation_windows": 2}
HANG = 900.0  # seconds after which a process counts as hanging
LAST = f"checkpoints/step_{NUM_STEPS:09d}.npz"


class Trial(NamedTuple):
    """Result of a trial: its name, and the problem if the run is lost, or None if the run survived."""

    name: str
    problem: str | None


class Ended(NamedTuple):
    """End of a process: exit status (None: killed because it hung), output, and duration in seconds."""

    status: int | None
    said: str
    seconds: float

    @property
    def is_clear(self) -> bool:
        """Whether the process exited with a one-line error."""
        return self.status == 2 and "Traceback" not in self.said and len(re.findall("^error: ", self.said, re.M)) == 1

    def __str__(self) -> str:
        lines = [line for line in self.said.strip().splitlines() if not line.startswith("(--verbosity")]
        status = f"no end after {self.seconds:.0f} s" if self.status is None else f"status {self.status}"
        return f"{status}: {lines[-1][:300] if lines else 'no output'}"


class Lab:
    """Folder with a text, an undisturbed run, and a folder per trial.

    Args:
        folder: parent folder of all files; created if it does not exist.
        seed: seed of the trials. Default: 0.
        environment: environment variables of every process. Default: none.
    """

    def __init__(self, folder: pathlib.Path, seed: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.environment = folder.resolve(), environment or {}
        self.random = random.Random(seed)
        self.text, self.data_dir = self.folder / "text", self.folder / "data"
        write_text(self.text)

    @functools.cached_property
    def reference(self) -> pathlib.Path:
        """Run directory of the undisturbed run. The file "writes" next to it lists the files that the run writes."""
        folder, log = self.folder / "reference", self.folder / "writes"
        if not (folder / "model.keras").exists():
            for path in (folder, self.data_dir):
                shutil.rmtree(path, ignore_errors=True)
            log.unlink(missing_ok=True)
            ended = self.run(folder, fault={"FAULT": "record", "FAULT_LOG": str(log)})
            if ended.status != 0:
                raise RuntimeError(f"The undisturbed run failed.\n{ended.said}")
            (self.folder / "seconds").write_text(str(ended.seconds))
        return folder

    @property
    def seconds(self) -> float:
        """Duration of the undisturbed run in seconds, including the preparation of its data."""
        return float((self.reference.parent / "seconds").read_text())

    def new(self, name: str) -> pathlib.Path:
        """Create an empty folder for a trial."""
        folder = self.folder / "trials" / name
        make_writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def start(
        self,
        workdir: str | os.PathLike,
        *,
        data_dir: str | os.PathLike | None = None,
        text: str | os.PathLike | None = None,
        changes: Sequence[str] = (),
        program: str = "train",
        fault: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: pathlib.Path | None = None,
    ) -> subprocess.Popen:
        """Start a command on a run directory. For training, `text` and `data_dir` replace the folders of the lab."""
        command = [
            sys.executable,
            "-m",
            *(["benchmarks.faults.hooked", program] if fault else [f"tf_sparse_attention.trainers.{program}"]),
        ]
        if program == "train":
            command += ["--config=demo:tiny", *(f"--config.train.{name}={value}" for name, value in SETTINGS.items())]
            command += [
                f"--config.data.path={text or self.text}",
                f"--config.data.data_dir={data_dir or self.data_dir}",
            ]
        command += [f"--workdir={workdir}", *changes]
        return start(command, {**self.environment, **(fault or {}), **(environment or {})}, cwd)

    def run(self, workdir: str | os.PathLike, **options) -> Ended:
        """Run a command and wait for its end; see `start`."""
        begin = time.monotonic()
        return end(self.start(workdir, **options), begin)

    def difference(self, workdir: pathlib.Path) -> str | None:
        """Return the first difference between a run and the undisturbed run, or None."""
        try:
            ours, theirs = arrays_of(workdir), arrays_of(self.reference)
        except (OSError, zipfile.BadZipFile) as error:
            return f"no last checkpoint: {error}"
        wrong = [name for name in theirs if ours.get(name) != theirs[name]]
        left = [path.name for path in workdir.rglob("*incomplete*")]
        if wrong or len(ours) != len(theirs):
            return f"{len(wrong)} of {len(theirs)} arrays have other bits"
        if not (workdir / "model.keras").exists():
            return "no model.keras"
        return f"left behind: {left[0]}" if left else None

    def resumed(self, workdir: pathlib.Path, address: str | None = None, **options) -> str | None:
        """Run the same command again on a run directory or its address. Return the problem, or None."""
        for path in workdir.rglob("*incomplete*"):  # old enough to be the stale file of a killed process
            os.utime(path, (0, 0))
        ended = self.run(address or workdir, **options)
        return self.difference(workdir) if ended.status == 0 else f"again: {ended}"


def start(command: Sequence[str], environment: Mapping[str, str], cwd: pathlib.Path | None = None) -> subprocess.Popen:
    """Start a process that imports this checkout, with additional environment variables."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=cwd or ROOT, env=variables, text=True, errors="replace", **pipes)


def run_module(name: str, *arguments: str, seconds: float = 3600.0) -> Ended:
    """Run a module and wait for its end."""
    begin = time.monotonic()
    return end(start([sys.executable, "-m", name, *arguments], {}), begin, seconds)


def end(process: subprocess.Popen, begin: float, seconds: float = HANG) -> Ended:
    """Wait for the end of a process, and kill the process if it hangs."""
    try:
        said, status = process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, status = process.communicate()[0], None
    return Ended(status, said, time.monotonic() - begin)


def was_killed(ended: Ended) -> bool:
    """Return whether a process was killed, directly or by a write beyond the file size limit."""
    return ended.status in (-signal.SIGKILL, -signal.SIGXFSZ)


def write_text(folder: pathlib.Path) -> None:
    """Write the training text, which has random words, unless it exists."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefgh", k=generator.randint(2, 7))) for _ in range(40)]
    for split, count in {"train": 4000, "validation": 200, "test": 200}.items():
        path, text = folder / split / "a.txt", " ".join(generator.choices(words, k=count))
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)


def arrays_of(folder: pathlib.Path) -> dict[str, bytes]:
    """Return the bytes of all arrays of the last checkpoint, by name."""
    with zipfile.ZipFile(folder / LAST) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".npy")}


def make_writable(folder: pathlib.Path, writable: bool = True) -> None:
    """Add or remove the write permission of a folder and its contents."""
    for path in (folder, *folder.rglob("*")) if folder.exists() else ():
        if not path.is_symlink():
            path.chmod(0o755 if writable else 0o555)
