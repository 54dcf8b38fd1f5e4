"""The study of speech: `python -m benchmarks.speech`."""

import json

import pytest

from benchmarks.quality import results
from benchmarks.speech import __main__ as study
from benchmarks.speech import tables
from tests.pages import ROOT
from tests.trainers.test_speech import path  # noqa: F401  # a file of made-up recordings

PASS = {"part": "step", "seconds": 0.02, "full_seconds": 0.04, "ratio": 0.5, "repeats": 3}


def test_the_page_has_the_results_of_the_file():
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert all(table in page for table in tables.tables(results.read_lines(tables.FILE)).split("\n\n"))


def test_an_invalid_option_is_named_and_tables_are_shown_without_a_run(tmp_path, capsys):
    for flags, message in [
        (["--workdir=runs", "--path=missing.npz"], "argument --path: must be a file, with --workdir."),
        (["--show", "--minutes=0"], "argument --minutes: must be positive. Received: 0.0."),
        (["--show", "--kinds=dense"], "argument --kinds: invalid choice: 'dense'"),
    ]:
        with pytest.raises(SystemExit):
            study.main(flags)
        assert message in capsys.readouterr().err
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps({**PASS, "kind": "local", "length": 500}) + "\n")
    study.main(["--show", f"--results={file}"])
    assert "| local, relative | 0.50 |" in capsys.readouterr().out
