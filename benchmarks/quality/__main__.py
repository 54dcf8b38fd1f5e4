"""Trains and measures what kinds of heads are worth on real text: `python -m benchmarks.quality`.

Each cell of a set, a model of one kind of heads from one seed, is trained by `python -m trainers.train` and measured on
the test split; what `results.jsonl` has already is not run again, and a run that was killed resumes. Prints the tables
of the set, "-" where nothing was run. Texts other than Python's own source are named with their folder or file:

  python -m benchmarks.quality --set=quick
  python -m benchmarks.quality --set=full --text=books=FOLDER --text=wiki_xml=FILE
"""

import argparse
import fnmatch
import pathlib
import resource
import subprocess
import sys

from benchmarks.quality import config, results
from benchmarks.quality.results import Cell

SEEDS = (0, 1)
MAIN = ("local", "last_random", "last_nearest", "last_successors")
BOTH = ("random", "nearest", "successors")
OTHERS = ("strided", "lsh", "top_k", "dense", "random_successors", "lsh_successors", "window_successors")
# The layers and heads that have successor values; then those of the last layer changed in one thing each.
PLACES = ("first_successors", "one_routed", "three_routed", "added")
PLACES += ("last_one_routed", "last_three_routed", "last_four_routed", "last_added")
CHANGES = (
    "together",
    *("nearest", "random_successors", "window_successors", "lsh_successors", "one_cluster"),
    *("temperature_1", "temperature_half", "temperature_root", "gate", "one_softmax"),
    *("no_commitment", "more_commitment", "faster_centroids", "data_start", "fast_start", "sooner_revived"),
    *("half_the_clusters", "twice_the_clusters", "half_the_size", "twice_the_size"),
    *("rotary", "rank_distance", "token_distance", "shifted_keys", "convolved_keys"),
)
CHANGED = ("local", "successors", "last_successors", *PLACES, *(f"last_{kind}" for kind in CHANGES))
QUICK = [Cell("python", 1024, kind, 500, seed) for kind in MAIN for seed in SEEDS]
FULL = [
    *QUICK,
    *(Cell("python", 1024, kind, 500, seed) for kind in (*BOTH, *OTHERS) for seed in SEEDS),
    *(Cell("python", 2048, kind, 500, seed) for kind in MAIN for seed in SEEDS),
    *(Cell(text, 1024, kind, 500, seed) for text in ("books", "wiki_xml") for kind in MAIN for seed in SEEDS),
    *(Cell("python", length, kind, 3000, seed) for length in (1024, 2048) for kind in MAIN for seed in SEEDS),
    *(Cell("python", 4096, kind, 500, seed) for kind in MAIN for seed in SEEDS),
]
DECIDES = [Cell("python", 1024, kind, 500, seed) for kind in CHANGED for seed in SEEDS]
SETS = {"quick": QUICK, "decides": DECIDES, "full": FULL}
VOCABULARY_SIZE = 2000
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "quality.md"


def run_cell(cell: Cell, folder: pathlib.Path, path: str | None) -> dict:
    """Returns the result of a cell: trains its model, unless that was done, and measures it."""
    own = folder / f"{cell.config}-{cell.seed}"
    text = [] if path is None else [f"--config.data.path={path}"]
    vocabulary = folder / f"{cell.text}.subwords"
    name = f"--config=benchmarks/quality/config.py:{cell.config}"
    if not vocabulary.exists():
        _run("vocabulary", name, *text, f"--size={VOCABULARY_SIZE}", f"--output={vocabulary}")
    seed, output = f"--config.seed={cell.seed}", f"--workdir={own}"
    before = _processor_seconds()
    try:
        _run("train", name, *text, seed, output, f"--config.data.vocabulary={vocabulary}")
    finally:  # of all tries together, where some were stopped
        file = own / "processor_seconds.txt"
        seconds = _processor_seconds() - before + (float(file.read_text()) if file.exists() else 0)
        own.mkdir(parents=True, exist_ok=True)
        file.write_text(str(seconds))

    from benchmarks.quality.measure import measure  # imports TensorFlow

    return {**measure(own, config.REACH), "processor_seconds": seconds}


def _run(program, *flags):
    subprocess.run([sys.executable, "-m", f"trainers.{program}", *flags], check=True)


def _processor_seconds():
    """Returns the processor time of all programs that were run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="quick", help="which cells")
    parser.add_argument("--text", action="append", default=[], metavar="NAME=PATH", help="where a text is")
    parser.add_argument(
        "--only", nargs="*", metavar="PATTERN", help="of the set these alone, as python-1024-last_*-500"
    )
    parser.add_argument("--seeds", nargs="*", type=int, help="of the set these alone")
    parser.add_argument("--folder", default="runs/quality", help="of the runs")
    parser.add_argument("--results", default=results.FILE, type=pathlib.Path, help="another file: all is run again")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--write", action="store_true", help="write the tables of the sets to docs/quality.md")
    options = parser.parse_args()
    paths = {"python": None, **dict(pair.split("=", 1) for pair in options.text)}
    cells = [
        cell
        for cell in SETS[options.set]
        if any(fnmatch.fnmatchcase(cell.config, pattern) for pattern in options.only or ["*"])
        and cell.seed in (options.seeds or [cell.seed])
    ]
    for cell in [] if options.show else cells:
        if cell in results.read(options.results):
            continue
        if cell.text not in paths:
            print(f"left out: {cell.config}, for which --text={cell.text}=PATH is not given", flush=True)
            continue
        found = run_cell(cell, pathlib.Path(options.folder), paths[cell.text])
        results.append(cell, found, options.results)
    print(results.tables(cells, results.read(options.results)))
    if options.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_with_tables(page: str) -> str:
    """Returns docs/quality.md with the tables of all cells."""
    for name in ("full", "decides"):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}{results.tables(SETS[name], results.read())}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    main()
