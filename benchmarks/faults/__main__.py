"""What a training survives: `make faults` or `python -m benchmarks.faults [ROW ...]`.

Each row does something to a tiny training, a trial a process or two: it survives if it ends with the same bits as one
that was left alone, or refuses in one line and goes on from there once the fault is gone. Anything else, a traceback,
another result or a process that hangs, is lost. Prints each trial as it ends, and a table of rows. Hours in all; rows
and the number of their trials can be chosen.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.faults import content, disk, kills, memory
from benchmarks.faults.lab import Lab, Trial


class Row(NamedTuple):
    """A row of the table: what is done, the function that tries it, and how many trials there are."""

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
    "data": Row("bad data", content.bad_data, len(content.BAD_DATA)),
    "trainers": Row("two trainers in one folder", kills.two_trainers, 3),
    "read-only": Row("read-only folders", disk.read_only, 5),
    "paths": Row("odd paths", disk.odd_paths, len(disk.ODD) + 1),
    "memory": Row("memory stays flat", memory.flat, 10),
}


def table(found: dict[str, list[Trial]]) -> str:
    """Returns rows of fault, tried, survived and lost, and below them what was lost."""
    lines = [f"{'fault':<36}{'tried':>8}{'survived':>10}{'lost':>6}"]
    for name, trials in found.items():
        lost = sum(trial.problem is not None for trial in trials)
        lines.append(f"{ROWS[name].title:<36}{len(trials):>8}{len(trials) - lost:>10}{lost:>6}")
    lost = [f"lost: {name}: {trial.name}: {trial.problem}" for name in found for trial in found[name] if trial.problem]
    return "\n".join([*lines, *lost])


def main(argv: list[str] | None = None) -> None:
    """Runs the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--trials", type=int, help="of each row, at most; default: as many as the table asks for")
    parser.add_argument(
        "--workdir", type=pathlib.Path, default=pathlib.Path("runs/faults"), help="default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is random in trials; default: %(default)s")
    options = parser.parse_args(argv)
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"ROW must be of {', '.join(ROWS)}. Received: {unknown[0]}.")
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
