"""File of results, one line per cell, and its tables."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.quality.cells import Cell

FILE = pathlib.Path(__file__).with_name("results.jsonl")
COLUMNS = {"loss": 3, "bits_per_byte": 3, "far": 2, "near": 2, "new": 2, "quarters": 2}  # numbers of decimals


def read(path: pathlib.Path = FILE) -> dict[Cell, dict[str, Any]]:
    """Return the results by cell; the last line of a cell counts."""
    return {Cell(**line.pop("cell")): line for line in read_lines(path)}


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the results of a file, one per line, or an empty list if the file does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_missing(keys: Iterable[Mapping[str, Any]], run: Callable[..., Mapping[str, Any]], path: pathlib.Path) -> None:
    """Call `run` for each key that a file lacks, and append a line with the key and the result."""
    for key in keys:  # read the file each time: another process may append lines
        if any(key.items() <= line.items() for line in read_lines(path)):
            continue
        line = {**key, **run(**key)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def tables(cells: Sequence[Cell], results: dict[Cell, dict[str, Any]]) -> str:
    """Return a Markdown table per text, length and number of steps; missing results are "-".

    Values are means over seeds, with half of their range in brackets.
    """
    groups = dict.fromkeys((cell.text, cell.length, cell.steps) for cell in cells)
    parts = []
    for group in groups:
        own = [cell for cell in cells if (cell.text, cell.length, cell.steps) == group]
        text, length, steps = group
        parts += [f"{text}, windows of {length:,} tokens, {steps:,} steps", "", *_table(own, results), ""]
    return "\n".join(parts)


def _table(cells, results):
    names = [name.replace("_", " ") for name in COLUMNS]
    lines = [f"| heads | seeds | weights | processor s | {' | '.join(names)} |", "|---" * (4 + len(names)) + "|"]
    for kind in dict.fromkeys(cell.kind for cell in cells):
        found = [results[cell] for cell in cells if cell.kind == kind and cell in results]
        if not found:
            lines.append(f"| {kind} | 0 {'| - ' * (2 + len(names))}|")
            continue
        weights = f"{found[0]['weights'] / 1e3:.0f}k"
        figures = [_figure([each[name] for each in found], digits) for name, digits in COLUMNS.items()]
        seconds = with_spread([each["processor_seconds"] for each in found], 0)
        lines.append(f"| {kind} | {len(found)} | {weights} | {seconds} | {' | '.join(figures)} |")
    return lines


def _figure(values, digits):
    """Return the mean and spread of numbers, or the elementwise means of lists."""
    if isinstance(values[0], list):
        return ", ".join(f"{mean:.{digits}f}" for mean in np.mean(values, axis=0))
    return with_spread(values, digits)


def with_spread(values: Iterable[float], digits: int) -> str:
    """Return the mean of numbers and, for several numbers, half of their range in brackets."""
    values = list(values)
    spread = "" if len(values) < 2 else f" ({np.ptp(values) / 2:.{digits}f})"
    return f"{np.mean(values):.{digits}f}{spread}"
