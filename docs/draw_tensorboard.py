"""Draws docs/tensorboard.png, what TensorBoard shows of a run: `python -m docs.draw_tensorboard --workdir=runs/tiny`.

From the event files of the run, as TensorBoard's page of scalars has them: a chart for each name, training and
validation in one. docs/training.md has the command of the run. `make docs` uses the picture unchanged.
"""

import argparse
import pathlib

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from tf_sparse_attention.trainers.shared import workdir

PICTURE = pathlib.Path(__file__).with_name("tensorboard.png")
KINDS = {"train": "tab:orange", "validation": "tab:blue"}
COLUMNS = 4
SHOWN = ("loss", "bits_per_byte", "learning_rate", "gradient_norm", "tokens_per_second")  # in this order
ROUTING = (
    "routing/",
    "/used",
    "/entropy",
    "/overfull",
)  # how names of routed layers begin and end; of several the first is drawn


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/tiny"), help="default: %(default)s")
    parser.add_argument("--output", type=pathlib.Path, default=PICTURE, help="default: docs/tensorboard.png")
    options = parser.parse_args(arguments)
    curves = {kind: read_curves(options.workdir / workdir.TENSORBOARD / kind) for kind in KINDS}
    names = charts(curves)
    rows = -(-len(names) // COLUMNS)
    figure, axes = pyplot.subplots(
        rows, COLUMNS, figsize=(2.7 * COLUMNS, 2.1 * rows), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes.flat, names, strict=False):
        for kind, color in KINDS.items():
            if name in curves[kind]:
                axis.plot(*curves[kind][name], ".-", color=color, label=kind, markersize=4)
        axis.set_title(name if name.count("/") < 2 else f"…/{'/'.join(name.split('/')[-2:])}", fontsize=8)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(KINDS), fontsize=8)
    figure.savefig(options.output, dpi=110)
    pyplot.close(figure)
    print(f"wrote {options.output.name}, {options.output.stat().st_size} bytes")


def read_curves(folder):
    """Return the scalars in a folder of event files, {name: (steps, values)}."""
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    events.Reload()
    found = {name: events.Scalars(name) for name in events.Tags()[SCALARS]}
    return {name: ([each.step for each in curve], [each.value for each in curve]) for name, curve in found.items()}


def charts(curves):
    """Returns the names of the charts that are drawn, those of `SHOWN` first."""
    names = {name for found in curves.values() for name in found}
    start, *ends = ROUTING
    routed = [sorted(name for name in names if name.startswith(start) and name.endswith(end))[:1] for end in ends]
    return [name for name in SHOWN if name in names] + [name for found in routed for name in found]


if __name__ == "__main__":
    main()
