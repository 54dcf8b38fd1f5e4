"""Types of attention on speech in equal processor time: `python -m benchmarks.speech --path=SPEECH.npz --workdir=DIR`.

A small version of section 4.1 of Vyas et al. 2020. Three parts:

  step      processor time of a forward pass by length, for each kind, alternating with full attention
  train     train a model for each kind of `trainers/configs/speech.py` and seed, in equal minutes of processor time.
            The number of steps is measured once per kind, so that the learning rate schedule fits. Compilation time is
            not counted, except in "processor seconds in all"
  evaluate  phone error rates on the test split with greedy decoding; models with full, clustered and improved attention
            are also evaluated with each other's attention

Prints the tables. Each result is a line in the file of results and is not measured again. Killed training resumes.
"""

import argparse
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

from benchmarks.quality import results
from benchmarks.speech.tables import EXCHANGED, FILE, select, tables
from tf_sparse_attention.trainers.configs import speech

PARTS = ("step", "train", "evaluate")
LENGTHS = (200, 500, 1000, 2000, 4000, 4500, 16000)  # frames; the recordings have up to 4,490


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.speech", description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--path", type=pathlib.Path, help="file of features and phonemes, see `tsa.data.open_speech`")
    add("--workdir", type=pathlib.Path, help="folder of the runs")
    add("--minutes", type=float, default=5.0, help="processor time per training (default: %(default)s)")
    add("--seed", type=int, nargs="+", default=[0], dest="seeds", help="default: 0")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    add("--kinds", nargs="+", choices=tuple(speech.KINDS), default=tuple(speech.KINDS), help="default: all")
    add("--lengths", type=int, nargs="+", default=LENGTHS, help="frames, for the part step (default: %(default)s)")
    add("--repeats", type=int, default=9, help="forward passes per kind and length (default: %(default)s)")
    add("--paced_steps", type=int, default=40, help="steps to measure the training speed (default: %(default)s)")
    add("--results", type=pathlib.Path, help="default: WORKDIR/speech.jsonl")
    add("--show", action="store_true", help="print the tables of the file of results, run nothing")
    options = parser.parse_args(argv)
    for name in ("minutes", "repeats", "paced_steps"):
        if getattr(options, name) <= 0:
            parser.error(f"argument --{name}: must be positive. Received: {getattr(options, name)}.")
    if options.show:
        options.results = options.results or FILE
    elif options.workdir is None or options.path is None or not options.path.is_file():
        parser.error(f"argument --path: must be a file, with --workdir. Received: {options.path}, {options.workdir}.")
    else:
        options.results = options.results or options.workdir / "speech.jsonl"
    return options


def run(options: argparse.Namespace) -> None:
    """Measure missing results."""
    from benchmarks.speech import forward  # imports TensorFlow, like the modules below

    options.workdir.mkdir(parents=True, exist_ok=True)
    if "step" in options.parts:
        pairs = itertools.product(options.lengths, options.kinds)
        keys = [{"part": "step", "length": length, "kind": kind} for length, kind in pairs]
        measure(keys, lambda part, length, kind: forward.compare(kind, length, options.repeats), options)
        forward.model_of.cache_clear()
    for seed in options.seeds:
        for kind in options.kinds:
            train_and_evaluate(kind, seed, options)


def measure(keys: Any, call: Any, options: argparse.Namespace) -> None:
    """Add a line to the file of results for each missing key."""
    results.run_missing(keys, call, options.results)


def train_and_evaluate(kind: str, seed: int, options: argparse.Namespace) -> None:
    """Train and evaluate a model, if these parts are selected."""
    from benchmarks.speech import scores, training

    folder = options.workdir / f"{kind}-{options.minutes:g}-{seed}"
    key = {"kind": kind, "seed": seed, "minutes": options.minutes}
    if "train" in options.parts:
        paced = {"part": "pace", "kind": kind}
        where = options.path, options.workdir
        measure([paced], lambda **_: training.pace(kind, options.paced_steps, *where), options)
        (found,) = select(results.read_lines(options.results), **paced)
        num_steps = max(round(60 * options.minutes / found["seconds_per_step"]), 1)
        config = training.config_of(kind, seed, num_steps, *where)
        measure([{"part": "train", **key}], lambda **_: training.train(config, folder), options)
    if "evaluate" in options.parts:
        for attention in attentions(kind):
            other = None if attention == kind else attention
            scored = {"part": "evaluate", **key, "attention": attention}
            measure([scored], lambda other=other, **_: scores.evaluate(folder, other), options)


def attentions(kind: str) -> Iterator[str]:
    """Yield the kinds of attention for the evaluation of a model trained with `kind`, starting with `kind`."""
    yield kind
    if kind in EXCHANGED:
        yield from (other for other in EXCHANGED if other != kind)


def main(argv: list[str] | None = None) -> None:
    """Run the selected parts and print the tables."""
    options = parse(argv)
    if not options.show:
        from tf_sparse_attention.backends import check_backend

        check_backend()
        run(options)
    print(tables(results.read_lines(options.results)))


if __name__ == "__main__":
    main()
