"""Tables of the study, from its file of results."""

import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.quality.results import with_spread
from tf_sparse_attention.trainers.configs import speech

FILE = pathlib.Path(__file__).parents[1] / "speech.jsonl"  # the results in docs/tasks.md
EXCHANGED = ("full", "clustered", "improved")  # kinds with the same weights, which can replace each other
Rows = Sequence[dict[str, Any]]


def select(rows: Rows, **wanted: Any) -> list[dict[str, Any]]:
    """Return the rows with the given values."""
    return [row for row in rows if wanted.items() <= row.items()]


def tables(rows: Rows) -> str:
    """Return the results as Markdown tables; tables without results are omitted."""
    parts = [_forward(select(rows, part="step"))]
    for minutes in sorted({row["minutes"] for row in rows if "minutes" in row}):
        parts += [_kinds(select(rows, minutes=minutes), minutes), _exchanges(select(rows, minutes=minutes))]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _markdown(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    rows = [list(head), *map(list, lines)]
    rows.insert(1, ["---"] * len(rows[0]))
    return [f"| {' | '.join(row)} |" for row in rows]


def _forward(rows):
    """Return a table of the processor time of a forward pass: of "full", and of other kinds relative to "full"."""
    lengths = sorted({row["length"] for row in rows})
    if not lengths:
        return []
    full = [1000 * statistics.median(row["full_seconds"] for row in select(rows, length=each)) for each in lengths]
    lines = [["full, in milliseconds", *(f"{each:.0f}" for each in full)]]
    for kind in speech.KINDS:
        ratios = {row["length"]: row["ratio"] for row in select(rows, kind=kind)}
        if ratios:
            cells = (f"{ratios[each]:.2f}" if each in ratios else "-" for each in lengths)
            lines.append([f"{kind}, relative", *cells])
    return _markdown(["frames", *(f"{each:,}" for each in lengths)], lines)


def _kinds(rows, minutes):
    """Return a table with a row per kind: error rates after the same processor time."""
    lines = []
    for kind in speech.KINDS:
        trained = select(rows, part="train", kind=kind)
        scored = select(rows, part="evaluate", kind=kind, attention=kind)
        if not trained or not scored:
            continue
        lines.append([
            kind, _percent(scored), with_spread([row["loss"] for row in scored], 3),
            f"{statistics.mean(row['steps'] for row in trained):,.0f}",
            f"{statistics.mean(row['processor_seconds'] for row in trained):.0f}",
            f"{trained[0]['weights']:,}", str(len(scored)),
        ])  # fmt: skip
    head = ("heads", f"phone error rate after {minutes:g} minutes", "nats per label", "steps")
    return lines and _markdown([*head, "processor seconds in all", "weights", "seeds"], lines)


def _exchanges(rows):
    """Return a table of error rates: rows are the kinds in training, columns the kinds in evaluation."""
    lines = []
    for kind in EXCHANGED:
        cells = [_percent(select(rows, part="evaluate", kind=kind, attention=other)) for other in EXCHANGED]
        if any(cell != "-" for cell in cells):
            lines.append([kind, *cells])
    return lines and _markdown(["trained with \\ scored with", *EXCHANGED], lines)


def _percent(rows):
    return f"{with_spread([100 * row['phone_error_rate'] for row in rows], 2)} %" if rows else "-"
