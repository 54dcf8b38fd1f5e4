"""Which patterns can be written as LiteRT and ONNX: `python -m docs.tables.conversion` prints two tables, of language
models and of encoder-decoders.

Each model is exported and run, and its answers are compared with those of Keras; with `--write` the tables go to
docs/portable.md.
"""

import pathlib
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.export import portable_cases, source_cases
from tests.export.portable_cases import SIZES, export
from tests.pages import DOCS, markdown_table, write_between

PAGE = DOCS / "portable.md"
TARGETS = ("LiteRT", "ONNX")


class Table(NamedTuple):
    """One table of the page."""

    name: str  # in the marks around it
    first: str  # its first column
    errors: dict[str, Callable]  # by signature, functions of a model and what runs its file to the largest error
    cases: dict[str, Any]  # names of its lines, with what `make` takes
    make: Callable  # function of a signature and a case to a model
    needed: dict[str, tuple[str, ...]]  # the signatures that a file of one must have

    @property
    def columns(self):
        """Pairs of target and signature."""
        return [(target, signature) for target in TARGETS for signature in self.errors]


MODELS = Table(
    "conversions",
    "model",
    {"score": portable_cases.score_error, "decode": portable_cases.decode_error},
    portable_cases.CASES,
    lambda signature, settings: portable_cases.make(**settings),
    {"score": ("score",), "decode": ("decode",)},
)
SOURCES = Table(
    "sources",
    "heads",
    {"encode": source_cases.encode_error, "decode": source_cases.decode_error},
    source_cases.CASES,
    source_cases.make,
    {"encode": ("encode",), "decode": ("encode", "decode")},
)
TABLES = (MODELS, SOURCES)


def marks(table):
    return f"<!-- {table.name}: begin -->", f"<!-- {table.name}: end -->"


def cell(table, name, target, signature):
    """Return the largest error of a file, or the reason why it cannot be measured."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = table.make(signature, table.cases[name])
            sizes = {**SIZES, "source_length": source_cases.SOURCE_LENGTH} if table is SOURCES else {}
            run = export(target, model, pathlib.Path(folder), table.needed[signature], **sizes)
        except ValueError as refusal:
            return reason_of(str(refusal))
        return f"{table.errors[signature](model, run):.0e}"


def every_cell(table):
    """Yield name, target and signature of each cell of a table."""
    for name in table.cases:
        for target, signature in table.columns:
            yield name, target, signature


def reason_of(message):
    """Return the part of an exporter's message that says why."""
    reasons = r"the reason: (.*)\.$", r"with a cache: (.*?)\. Use `signatures", r"of other queries: (.*?)\. Received"
    for pattern in (*reasons, r"Received: (.*)\.$"):
        if found := re.search(pattern, message):
            return found[1]
    return message


def as_markdown(table):
    rows = [[table.first, *(f"{target} `{signature}`" for target, signature in table.columns)]]
    for name in table.cases:
        rows.append([name, *(cell(table, name, target, signature) for target, signature in table.columns)])
        print(rows[-1], file=sys.stderr, flush=True)
    return markdown_table(rows)


def lines_of(table, page):
    """Return the cells of each line of a table, given the text of the page."""
    text = page.partition(marks(table)[0])[2].partition(marks(table)[1])[0]
    return [re.split(r"(?<!\\) ?\| ?", line.strip().strip("|").strip()) for line in text.strip().splitlines()[2:]]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for each in TABLES:
        made = as_markdown(each)
        print(made)
        if "--write" in sys.argv:
            write_between(PAGE, marks(each), made)
