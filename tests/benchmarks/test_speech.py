"""The study of speech: `python -m benchmarks.speech`."""

import json
import math
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.quality import results
from benchmarks.speech import __main__ as study
from benchmarks.speech import tables
from docs import draw_speech
from tests.pages import ROOT
from tests.trainers.test_speech import path  # noqa: F401  # a file of made-up recordings
from tf_sparse_attention.trainers.configs import speech

SCORE = {"part": "evaluate", "minutes": 5.0, "phone_error_rate": 0.05, "loss": 0.5, "labels": 9, "recordings": 2}
TRAINED = {"part": "train", "minutes": 5.0, "steps": 1000, "processor_seconds": 400.4, "weights": 12345}
PASS = {"part": "step", "seconds": 0.02, "full_seconds": 0.04, "ratio": 0.5, "repeats": 3}


def test_the_page_has_the_results_of_the_file():
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert all(table in page for table in tables.tables(results.read_lines(tables.FILE)).split("\n\n"))


def test_a_row_of_kinds_has_the_spread_of_its_seeds_and_waits_for_its_score():
    rows = [
        *({**TRAINED, "kind": kind, "seed": seed} for kind in ("local", "full") for seed in (0, 1)),
        {**SCORE, "kind": "full", "attention": "full", "seed": 0},
        {**SCORE, "kind": "full", "attention": "full", "seed": 1, "phone_error_rate": 0.06},
        {**SCORE, "kind": "full", "attention": "improved", "seed": 1, "phone_error_rate": 0.07},
    ]
    kinds, exchanges = tables.tables(rows).split("\n\n")
    assert "phone error rate after 5 minutes" in kinds
    assert kinds.splitlines()[2:] == ["| full | 5.50 (0.50) % | 0.500 (0.000) | 1,000 | 400 | 12,345 | 2 |"]
    assert exchanges.splitlines()[2:] == ["| full | 5.50 (0.50) % | - | 7.00 % |"]


def test_the_table_of_forward_passes_has_the_time_of_full_attention_and_parts_of_it():
    rows = [{**PASS, "kind": "lsh", "length": 1000}, {**PASS, "kind": "full", "length": 200, "ratio": 1.0}]
    assert tables.tables(rows).splitlines() == [
        "| forward pass, frames: | 200 | 1,000 |",
        "| --- | --- | --- |",
        "| full, milliseconds | 40 | 40 |",
        "| full, of full | 1.00 | - |",
        "| lsh, of full | - | 0.50 |",
    ]


def test_a_model_is_scored_with_its_own_attention_first_and_with_those_of_its_weights():
    assert {kind: [*study.attentions(kind)] for kind in ("improved", "lsh")} == {
        "improved": ["improved", "full", "clustered"],
        "lsh": ["lsh"],
    }


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
    assert "| local, of full | 0.50 |" in capsys.readouterr().out


def test_the_picture_is_drawn_of_results(tmp_path):
    rows = [{**PASS, "kind": kind, "length": length} for kind in speech.KINDS for length in (*draw_speech.LENGTHS, 200)]
    rows += [{**SCORE, "kind": kind, "attention": kind, "seed": 0} for kind in speech.KINDS]
    rows += [{**SCORE, "kind": "full", "attention": "improved", "seed": 0}]
    draw_speech.main(tmp_path, rows)
    assert 10_000 < (tmp_path / "speech.png").stat().st_size < 150_000


@pytest.mark.full
def test_a_killed_study_resumes_and_measures_nothing_twice(path, tmp_path):  # noqa: F811
    command = [sys.executable, "-m", "benchmarks.speech", f"--path={path}", f"--workdir={tmp_path}", "--minutes=0.1"]
    command += ["--kinds", "full", "local", "--lengths", "200", "--repeats=1", "--paced_steps=2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if list(tmp_path.glob("full-*/checkpoints/*.npz")):
                process.kill()
            time.sleep(0.1)
    assert process.returncode == -signal.SIGKILL
    file = tmp_path / "speech.jsonl"
    before = file.read_text()
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.read_text().startswith(before) and before.count("\n") == 3
    named = [tuple(row.get(name) for name in ("part", "kind", "attention")) for row in rows]
    assert named == [
        *(("step", kind, None) for kind in ("full", "local")),
        *((part, "full", None) for part in ("pace", "train")),
        *(("evaluate", "full", attention) for attention in ("full", "clustered", "improved")),
        *((part, "local", None) for part in ("pace", "train")),
        ("evaluate", "local", "local"),
    ]
    trained = rows[3]
    assert trained["steps"] == max(round(60 * 0.1 / rows[2]["seconds_per_step"]), 1)
    assert trained["processor_seconds"] > trained["steps"] * rows[2]["seconds_per_step"] / 2
    assert all(math.isfinite(row["loss"]) for row in rows if row["part"] == "evaluate")
    assert "| local |" in printed and "| full, of full |" in printed
