"""Quality of several types of heads on real text: `python -m benchmarks.quality`.

`tsa-train` trains each cell of a set, a model with one kind of heads and one seed. The model is then evaluated on the
test split. Cells in `results.jsonl` are not repeated, and killed runs resume. Prints the tables of the set, with "-"
for missing results. Texts other than Python source code are given by folder or file:

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
    """Train the model of a cell, unless it is trained, and return its results."""
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
    finally:  # sum the time of all attempts, including interrupted ones
        file = own / "processor_seconds.txt"
        seconds = _processor_seconds() - before + (float(file.read_text()) if file.exists() else 0)
        own.mkdir(parents=True, exist_ok=True)
        file.write_text(str(seconds))

    from benchmarks.quality.measure import measure  # imports TensorFlow

    return {**measure(own, config.REACH), "processor_seconds": seconds}


def _run(program, *flags):
    subprocess.run([sys.executable, "-m", f"tf_sparse_attention.trainers.{program}", *flags], check=True)


def _processor_seconds():
    """Return the processor time of all finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def parse(argv: list[str] | None = None) -> tuple[argparse.Namespace, list[Cell], dict[str, str | None]]:
    """Return the options, the selected cells, and the paths of the given texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--set", choices=SETS, default="quick", help="which cells (default: %(default)s)")
    add("--text", action="append", default=[], metavar="NAME=PATH", help="folder or file of a text: books, wiki_xml")
    add("--only", nargs="+", metavar="PATTERN", default=["*"], help="cells by pattern: 'python-1024-last_*-500'")
    add("--seeds", nargs="+", type=int, default=list(SEEDS), help="default: all")
    add("--folder", default="runs/quality", help="folder of the runs (default: %(default)s)")
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
            parser.error(f"argument --text: PATH must be a folder or file that exists. Received: {text}.")
        paths[name] = path
    try:
        return options, select(options.set, options.only, options.seeds), paths
    except ValueError as error:
        return parser.error(str(error))


def main() -> None:
    options, cells, paths = parse()
    if not options.show:
        for text in dict.fromkeys(cell.text for cell in cells if cell.text not in paths):
            print(f"skipped: {text}, because --text={text}=PATH is missing", flush=True)
        keys = [{"cell": cell._asdict()} for cell in cells if cell.text in paths]
        folder = pathlib.Path(options.folder)
        results.run_missing(keys, lambda cell: run_cell(Cell(**cell), folder, paths[cell["text"]]), options.results)
    print(results.tables(cells, results.read(options.results)))
    if options.write:
        PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page_with_tables(page: str) -> str:
    """Return docs/quality.md with the current tables of its sets and of recall."""
    from benchmarks.quality import recall  # imports TensorFlow

    found = {name: results.tables(SETS[name], results.read()) for name in ("full", "decides", "blocks")}
    for name, tables in {**found, "recall": recall.tables(recall.read())}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}{tables}{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    main()
