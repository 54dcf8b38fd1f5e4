"""The study of heads on real text: its categories of tokens, its models of equal size, its file and its tables."""

import math

import numpy as np
import pytest

from benchmarks.quality import config, contexts, lines, results
from benchmarks.quality.__main__ import DECIDES, FULL, PAGE, QUICK, page_with_tables
from benchmarks.quality.results import Cell
from tests.draws import first
from trainers.shared import components


def test_a_token_is_far_where_its_context_stood_before_only_beyond_the_reach():
    random = np.random.default_rng(0)
    ids, documents = random.integers(0, 4, (3, 60)), np.sort(random.integers(0, 3, (3, 60)))
    found = contexts.categories(ids, documents, reach=7)
    for row in range(3):
        for at in range(60):
            earlier = [
                s
                for s in range(1, at)
                if list(ids[row, s - 1 : s + 1]) == list(ids[row, at - 1 : at + 1])
                and len({*documents[row, s - 1 : s + 1], *documents[row, at - 1 : at + 1]}) == 1
            ]
            expected = contexts.NONE
            if earlier:
                expected = contexts.NEAR if at - max(earlier) <= 7 else contexts.FAR
            assert found[row, at] == expected
    assert set(found.ravel()) == {contexts.NONE, contexts.NEAR, contexts.FAR}


KINDS = [
    "one_softmax",
    "added",
    "first_successors",
    "last_successors",
    "rank_distance",
    "gate",
    "shifted_keys",
    "successors",
]


@pytest.mark.parametrize("kind", first([*KINDS, *(kind for kind in config.WHOLE if kind not in KINDS)], len(KINDS)))
def test_all_kinds_have_as_many_weights_as_local_heads(kind):
    model = components.make_model(config.get_config(f"python-1024-{kind}-10"), 1987)
    count = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert abs(count / 653_123 - 1) < 0.005  # those of "local"


def test_kinds_of_heads_grow_with_the_text():
    part = config.parts_of("successors", 4096)[1]
    assert (part["num_clusters"], part["cluster_size"]) == (64, 64)
    assert config.parts_of("dense", 4096)[0]["window"] == 4096


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python-1024-local", "TEXT-LENGTH"),
        ("a-64-sparse-1", "`kind` must be"),
        ("a-64-last_first_local-1", "`kind` must be"),
    ],
)
def test_other_cells_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        config.get_config(name)


def test_every_cell_has_a_configuration():
    assert len(set(FULL)) == len(FULL) and set(QUICK) <= set(FULL)
    for name in {cell.config for cell in (*FULL, *DECIDES)}:
        assert config.get_config(name).train.num_steps in (500, 3000)


def test_the_page_shows_what_the_file_has():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_tables(page) == page  # python -m benchmarks.quality --show --write
    assert "| local |" in page and "wiki_xml, windows of 1,024 tokens, 500 steps" in page


def test_results_are_kept_a_line_each_and_shown_with_their_spread(tmp_path):
    figures = {
        "bits_per_byte": 1.5,
        "far": 4.0,
        "near": 3.0,
        "new": 5.0,
        "quarters": [4.0, 3.0],
        "weights": 653_000,
        "processor_seconds": 130.0,
    }
    cells = [Cell("python", 1024, kind, 500, seed) for kind in ("local", "nearest") for seed in (0, 1)]
    for cell, loss in zip(cells, (3.5, 3.7), strict=False):
        results.append(cell, {"loss": loss, **figures}, tmp_path / "file")
    read = results.read(tmp_path / "file")
    assert [read[cell]["loss"] for cell in cells[:2]] == [3.5, 3.7] and len(read) == 2
    lines = results.tables(cells, read).splitlines()
    assert lines[0] == "python, windows of 1,024 tokens, 500 steps"
    figures = ["653k", "130 (0)", "3.600 (0.100)", "1.500 (0.000)", "4.00 (0.00)", "3.00 (0.00)", "5.00 (0.00)"]
    assert f"| local | 2 | {' | '.join(figures)} | 4.00, 3.00 |" in lines
    assert f"| nearest | 0 {'| - ' * 8}|" in lines
    assert results.read(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n    y = f(2)\nz", (2, 2)),
        ("x = (1,\n  2)\ny\n", (1, 1)),  # the last one does not count
        ('x = "no end\ny = 1\nz', (2, 1)),
        ("x = (1\ny = 1\nz = 2\nlast", (3, 2)),  # a bracket that nothing closes
        ('"""Text\nof lines"""\nlast', (1, 1)),
        ("x = 5 $ 3\nlast", (1, 0)),
        ("", (0, 0)),
    ],
)
def test_logical_lines_that_python_reads_are_counted(text, expected):
    assert lines.count_lines(text) == expected
