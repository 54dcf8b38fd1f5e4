"""The study of speech: `python -m benchmarks.speech`."""

from benchmarks.quality import results
from benchmarks.speech import tables
from tests.pages import ROOT
from tests.trainers.test_speech import path  # noqa: F401  # a file of made-up recordings


def test_the_page_has_the_results_of_the_file():
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert all(table in page for table in tables.tables(results.read_lines(tables.FILE)).split("\n\n"))
