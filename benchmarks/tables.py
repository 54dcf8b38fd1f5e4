"""Tables of the benchmark: ratios, growth and targets from seconds and bytes."""

import math

MEGABYTE = 1e6
# Targets for one sequence of 8192 positions with 8 heads of size 64 in one thread: time relative to dense attention,
# growth per doubling of the length, and bytes.
AIM_LENGTH = 8192
BYTES = {"bytes": 550e6, "remat_bytes": 300e6}
AIMS = {
    "local": {"both_ratio": 0.18, "growth": 2.2, **BYTES},
    "nearest": {"both_ratio": 0.22, "growth": 2.9, **BYTES},
    "top_k": {"both_ratio": 0.18, **BYTES},
    "selected": {"forward_ratio": 0.27, "both_ratio": 0.18, "growth": 2.3},
    "strided": {"both_ratio": 0.25},
    "fixed": {"both_ratio": 0.25},
    "all-attention": {"both_ratio": 0.5},
    "clustered": {"both_ratio": 0.15},
    "improved clustered": {"both_ratio": 0.22},
}
COLUMNS = {
    "case": "case",
    "length": "length",
    "mode": "mode",
    "forward": "forward s",
    "forward_ratio": "of dense",
    "both": "+backward s",
    "both_ratio": "of dense",
    "growth": "x per doubling",
    "bytes": "peak MB",
    "remat_ratio": "remat: of dense",
    "remat_bytes": "peak MB",
}


def best_mode(seconds):
    """Return the mode with the least time of both passes in {"MODE both": seconds}, without dense attention."""
    both = {name.removesuffix(" both"): value for name, value in seconds.items() if name.endswith(" both")}
    own = {mode: value for mode, value in both.items() if not mode.startswith("dense ")}
    return min(own, key=own.get)


def row_of(case, length, seconds, plain=None, remat=None):
    """Return one line of the table.

    Args:
        case: name of the case.
        length: T.
        seconds: {pass: seconds} of `worker.least_seconds`.
        plain: {"bytes": int} or {"skipped": reason} with XLA, or None.
        remat: like `plain`, with rematerialization.
    """
    mode = best_mode(seconds)
    dense = {
        part: min((v for k, v in seconds.items() if k.startswith("dense ") and k.endswith(part)), default=None)
        for part in ("forward", "both")
    }
    passes = {"forward": f"{mode} forward", "both": f"{mode} both", "remat": f"{mode} remat"}
    row = {"case": case, "length": length, "mode": mode, "seconds": seconds}
    for name, key in passes.items():
        row[name] = seconds.get(key)
        reference = dense["forward" if name == "forward" else "both"]
        row[f"{name}_ratio"] = None if None in (row[name], reference) else row[name] / reference
    row["bytes"] = (plain or {}).get("bytes")
    row["remat_bytes"] = (remat or {}).get("bytes")
    return row


def with_growth(rows):
    """Return the rows with "growth": the factor of the time of both passes per doubling of the length."""
    grown = []
    for row in rows:
        shorter = [other for other in rows if other["case"] == row["case"] and other["length"] < row["length"]]
        last = max(shorter, key=lambda other: other["length"], default=None)
        doublings = None if last is None else math.log2(row["length"] / last["length"])
        growth = None if last is None else (row["both"] / last["both"]) ** (1 / doublings)
        grown.append({**row, "growth": growth})
    return grown


def aims_met(rows):
    """Return pairs (sentence, is_met) for every target with results."""
    found = []
    for row in rows:
        if row["case"] not in AIMS or row["length"] != AIM_LENGTH:
            continue
        for name, limit in AIMS[row["case"]].items():
            value = row.get(name)
            if value is not None:
                unit = MEGABYTE if name.endswith("bytes") else 1
                sentence = f"{row['case']}: {_LABELS[name]} {value / unit:.3g}, at most {limit / unit:.3g}"
                found.append((sentence, value <= limit))
    return found


_LABELS = {
    "forward_ratio": "forward of dense",
    "both_ratio": "forward and backward of dense",
    "growth": "growth per doubling",
    "bytes": "peak MB",
    "remat_bytes": "peak MB rematerialised",
}


def table(rows, markdown=False):
    """Return the rows as a text table with the columns `COLUMNS`."""
    cells = [[_cell(name, row.get(name)) for name in COLUMNS] for row in rows]
    lines = [list(COLUMNS.values()), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    aligned = [
        [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in aligned)
    rule = [":" + "-" * (width - 1) if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [aligned[0], rule, *aligned[1:]])


def _cell(name, value):
    if value is None:
        return "-"
    if name.endswith("bytes"):
        return f"{value / MEGABYTE:.0f}"
    if name.endswith("ratio") or name == "growth":
        return f"{value:.2f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
