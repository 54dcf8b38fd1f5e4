"""Fault-injection tests of training: `make faults` or `python -m benchmarks.faults [ROW ...]`.

Each trial injects a fault into a tiny training run of one or two processes. The run survives if it ends with the same
bits as an undisturbed run. It also survives if it exits with a one-line error; if the fault can be removed, the same
command must then resume the run. A traceback, another result or a hanging process counts as lost.

The command prints each trial when it ends, and a table of rows. All rows take hours. The arguments select the rows and
the number of trials.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.faults import content, disk, kills, memory
from benchmarks.faults.lab import Lab, Trial


class Row(NamedTuple):
    """Row of the table: the fault, the function that runs its trials, and the number of trials."""

    title: str
    run: Callable[[Lab, int], Iterator[Trial]]
    count: int


ROWS = {
    "kills": Row("killed at a random moment", kills.random_moments, 20),
    "writes": Row("killed while a file is written", kills.while_writing, 40),
    "jax": Row("killed at a random moment, on JAX", kills.on_jax, 20),
    "address": Row("killed, with a run at an address", kills.at_address, 20),
    "workers": Row("one of two workers killed", kills.two_workers, 21),
    "full": Row("disk full, at every kind of file", disk.full_disk, 30),
    "damaged": Row("damaged files", content.damaged, 30),
    "data": Row("invalid data", content.bad_data, len(content.BAD_DATA)),
    "trainers": Row("two trainers in one folder", kills.two_trainers, 3),
    "read-only": Row("read-only folders", disk.read_only, 5),
    "paths": Row("unusual paths", disk.odd_paths, len(disk.ODD) + 1),
    "memory": Row("memory stays flat", memory.flat, 10),
}


def table(found: dict[str, list[Trial]]) -> str:
    """Format a table of the numbers of tried, survived and lost trials per fault, and list the lost trials."""
    lines = [f"{'fault':<36}{'tried':>8}{'survived':>10}{'lost':>6}"]
    for name, trials in found.items():
        lost = sum(trial.problem is not None for trial in trials)
        lines.append(f"{ROWS[name].title:<36}{len(trials):>8}{len(trials) - lost:>10}{lost:>6}")
    lost = [f"lost: {name}: {trial.name}: {trial.problem}" for name in found for trial in found[name] if trial.problem]
    return "\n".join([*lines, *lost])


def main(argv: list[str] | None = None) -> None:
    """Run the selected rows. Exit with status 1 if a trial is lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"rows to run, of {', '.join(ROWS)}; default: all")
    parser.add_argument("--trials", type=int, help="maximum number of trials per row; default: the number of the row")
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=pathlib.Path("runs/faults"), help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the trials; default: %(default)s")
    options = parser.parse_args(argv)
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"`ROW` must be one of {', '.join(ROWS)}. Received: {unknown[0]}.")
    lab = Lab(options.workdir, options.seed)
    found: dict[str, list[Trial]] = {}
    for name in options.rows or ROWS:
        count = ROWS[name].count if options.trials is None else min(options.trials, ROWS[name].count)
        found[name] = []
        for trial in ROWS[name].run(lab, count):
            found[name].append(trial)
            print(
                f"{name}: {trial.name}: {'survived' if trial.problem is None else f'LOST: {trial.problem}'}", flush=True
            )
    print(table(found))
    sys.exit(any(trial.problem for trials in found.values() for trial in trials))


if __name__ == "__main__":
    main()
