"""All tasks from data to a SavedModel: `make tasks` or `python -m benchmarks.tasks`.

Generates small data sets and trains a model for each task (`trainers/configs/toys.py`). Kills each training once and
resumes it, then evaluates the model, generates from it and exports it, with the commands of the trainer. Prints their
output and a table of their seconds. Existing data and finished trainings are reused.
"""

import argparse
import pathlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence

from benchmarks.tasks import made
from tf_sparse_attention.trainers.configs import toys

GENERATED = {
    "language_model": ["--prompt=120: one hundred twenty\n121:"],
    "translate": ["--prompt=three hundred forty-two"],
    "answer": ["--prompt=And the hat?\n\nThe cat is red.\n\nThe hat is blue.\n\nThe ship is green."],
    "image": ["--num_samples=8"],
    "audio": ["--length=512"],
    "speech": ["--prompt=test", "--num_samples=2"],
    "classify": ["--prompt=plum saw apple pear cow plum"],
}
TASKS = tuple(toys.VARIANTS)
CANNOT_WRITE = ("masked",)  # bidirectional: it cannot generate text


def program(name: str, workdir: pathlib.Path, arguments: Sequence[str] = ()) -> tuple[float, str]:
    """Run a program of the trainer; return its seconds and its output.

    Raises:
        SystemExit: If the program fails, with its output.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", f"tf_sparse_attention.trainers.{name}", f"--workdir={workdir}", *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{process.stdout}{process.stderr}")
    return time.monotonic() - started, process.stdout.strip()


def train_and_kill(workdir: pathlib.Path, arguments: Sequence[str]) -> bool:
    """Start a training and kill it when it has a checkpoint; return False if it ended before."""
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.train", f"--workdir={workdir}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if list(workdir.glob("checkpoints/*.npz")):
                process.kill()
            time.sleep(0.1)
    return process.returncode < 0


def run(task: str, folder: pathlib.Path) -> dict[str, float]:
    """Run all programs of a task; return their seconds by name."""
    workdir, seconds = folder / task, {}
    config = [f"--config=toys:{task}", f"--config.data.path={_data_of(task, folder)}"]
    config.append(f"--config.data.data_dir={folder / 'data'}")
    started = time.monotonic()
    killed = not (workdir / "model.keras").exists() and train_and_kill(workdir, config)
    program("train", workdir, config)
    seconds["train"] = time.monotonic() - started
    print(f"{task}: trained{', killed after a checkpoint and resumed' if killed else ''}", flush=True)
    steps = {"evaluate": ["--split=test"]}
    if task not in CANNOT_WRITE:
        steps |= {"generate": GENERATED[task], "export": ["--nojit_compile"]}
    for name, arguments in steps.items():
        seconds[name], said = program(name, workdir, arguments)
        print(f"{task}: {name}\n{textwrap.indent(said, '    ')}", flush=True)
    return seconds


def _data_of(task, folder):
    return folder / "data" / pathlib.Path(toys.get_config(task).data.path).name


def table(seconds: dict[str, dict[str, float]]) -> str:
    """Return the seconds of all programs as a table."""
    names = ("train", "evaluate", "generate", "export")
    lines = ["task            " + "".join(f"{name:>10}" for name in names)]
    for task, found in seconds.items():
        lines.append(f"{task:<16}" + "".join(f"{found[name]:10.0f}" if name in found else " " * 10 for name in names))
    total = sum(sum(found.values()) for found in seconds.values())
    return "\n".join([*lines, f"{total / 60:.1f} minutes in all"])


def main(argv: list[str] | None = None) -> None:
    """Run the selected tasks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/tasks"), help="default: %(default)s")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="default: all")
    options = parser.parse_args(argv)
    made.write_all(options.workdir / "data")
    print(table({task: run(task, options.workdir) for task in options.tasks}))


if __name__ == "__main__":
    main()
