"""Trains and measures what kinds of heads are worth on real text: `python -m benchmarks.quality`.

Each cell of a set, a model of one kind of heads from one seed, is trained by `tsa-train` and measured on
the test split; what `results.jsonl` has already is not run again, and a run that was killed resumes. Prints the tables
of the set, "-" where nothing was run. Texts other than Python's own source are named with their folder or file:

  python -m benchmarks.quality --set=quick
  python -m benchmarks.quality --set=full --text=books=FOLDER --text=wiki_xml=FILE
"""

import argparse
import pathlib
import resource
import subprocess
import sys

from benchmarks.quality import config, results
from benchmarks.quality.cells import SEEDS, SETS, Cell, select

VOCABULARY_SIZE = 2000
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "quality.md"


def run_cell(cell: Cell, folder: pathlib.Path, path: str | None) -> dict:
    """Return the result of a cell: trains its model, unless that was done, and measures it."""
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
    subprocess.run([sys.executable, "-m", f"tf_sparse_attention.trainers.{program}", *flags], check=True)


def _processor_seconds():
    """Return the processor time of all programs that were run."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, list[Cell], dict[str, str | None]]:
    """Return the options, the cells that they name, and where each text is that they give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--set", choices=SETS, default="quick", help="which cells (default: %(default)s)")
    add("--text", action="append", default=[], metavar="NAME=PATH", help="folder or file of a text: books, wiki_xml")
    add("--only", nargs="+", metavar="PATTERN", default=["*"], help="cells that fit, as 'python-1024-last_*-500'")
    add("--seeds", nargs="+", type=int, default=list(SEEDS), help="default: all")
    add("--folder", default="runs/quality", help="of the runs (default: %(default)s)")
    add("--results", default=results.FILE, type=pathlib.Path, help="file of results (default: the one of this folder)")
    add("--show", action="store_true", help="print the tables, run nothing")
    add("--write", action="store_true", help="write the tables of all sets to docs/quality.md")
    options = parser.parse_args(argv)
    paths: dict[str, str | None] = {"python": None}
    for text in options.text:
        name, _, path = text.partition("=")
        if name not in {cell.text for cells in SETS.values() for cell in cells} - {"python"}:
            parser.error(f"argument --text: must be books=PATH or wiki_xml=PATH. Received: {text}.")
        if not path or not pathlib.Path(path).exists():
            parser.error(f"argument --text: there must be a folder or file at the path. Received: {text}.")
        paths[name] = path
    try:
        return options, select(options.set, options.only, options.seeds), paths
    except ValueError as error:
        return parser.error(str(error))


def main() -> None:
    options, cells, paths = parse()
    if not options.show:
        for text in dict.fromkeys(cell.text for cell in cells if cell.text not in paths):
            print(f"left out: {text}, for which --text={text}=PATH is not given", flush=True)
        keys = [{"cell": cell._asdict()} for cell in cells if cell.text in paths]
        folder = pathlib.Path(options.folder)
        results.run_missing(keys, lambda cell: run_cell(Cell(**cell), folder, paths[cell["text"]]), options.results)
    print(results.tables(cells, results.read(options.results)))
    if options.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_with_tables(page: str) -> str:
    """Return docs/quality.md with the tables of the sets that it shows, and those of recall."""
    from benchmarks.quality import recall  # imports TensorFlow

    found = {name: results.tables(SETS[name], results.read()) for name in ("full", "decides", "blocks")}
    for name, tables in {**found, "recall": recall.tables(recall.read())}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}{tables}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    main()
