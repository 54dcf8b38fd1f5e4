"""Draws docs/speech.png, forward time against length and against error: `python -m docs.draw_speech`.

From the figures of `python -m benchmarks.speech` in `benchmarks/speech.jsonl`, as figure 1 of Vyas et al. 2020 does.
"""

import pathlib
import statistics

import matplotlib

matplotlib.use("agg")

import numpy as np
from matplotlib import pyplot

from benchmarks.quality import results
from benchmarks.speech.tables import EXCHANGED, FILE, select
from tf_sparse_attention.trainers.configs import speech

FOLDER = pathlib.Path(__file__).parent
LENGTHS = (1000, 4000)  # frames of the passes whose time is drawn against error: most recordings have 3 to 45 seconds
COLORS = dict(zip(speech.KINDS, pyplot.get_cmap("tab10").colors, strict=False))


def main(folder=FOLDER, rows=None):
    rows = results.read_lines(FILE) if rows is None else rows
    # Those that all kinds were trained for.
    minutes = statistics.mode(row["minutes"] for row in select(rows, part="evaluate"))
    scored = select(rows, part="evaluate", minutes=minutes)
    size = {"figsize": (3.2 * (1 + len(LENGTHS)), 3.4), "layout": "constrained"}
    figure, (first, *others) = pyplot.subplots(1, 1 + len(LENGTHS), **size)
    draw_lengths(first, select(rows, part="step"))
    for axis, length in zip(others, LENGTHS, strict=True):
        draw_errors(axis, select(rows, part="step", length=length), scored)
        axis.set_xlabel(f"ms of a forward pass, {length:,} frames", fontsize=9)
        axis.set_ylim(0, None)
    others[0].set_ylabel("phone error rate, %", fontsize=9)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(COLORS), fontsize=9)
    path = folder / "speech.png"
    figure.savefig(path, dpi=110)
    pyplot.close("all")
    print(f"wrote {path.name}, {path.stat().st_size} bytes")


def draw_lengths(axis, rows):
    """Draws what a forward pass takes against length, of what full attention takes."""
    for kind, color in COLORS.items():
        points = sorted((row["length"], row["ratio"]) for row in select(rows, kind=kind))
        axis.plot(*np.transpose(points), "o-", color=color, label=kind, markersize=3)
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("frames", fontsize=9)
    axis.set_ylabel("relative time of a forward pass", fontsize=9)


def draw_errors(axis, rows, scored):
    """Draws errors against the time of a pass: a disc with the own attention, a ring for "full" scored with others."""
    taken = {row["kind"]: 1000 * row["seconds"] for row in rows}
    for kind, color in COLORS.items():
        for trained in dict.fromkeys((kind, "full")):
            if trained != kind and kind not in EXCHANGED:
                continue
            errors = [100 * row["phone_error_rate"] for row in select(scored, kind=trained, attention=kind)]
            if errors and kind in taken:
                mean = statistics.mean(errors)
                ends = [[mean - min(errors)], [max(errors) - mean]]
                form = {"color": color, "fmt": "o", "fillstyle": "full" if trained == kind else "none"}
                axis.errorbar(taken[kind], mean, ends, capsize=3, **form)


if __name__ == "__main__":
    main()
