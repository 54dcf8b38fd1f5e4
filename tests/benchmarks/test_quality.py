"""The study of heads on real text: its categories of tokens, its models of equal size, its file and its tables."""

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.quality import ahead, config, held_out, lines, measure, results
from benchmarks.quality.__main__ import PAGE, page_with_tables, parse
from benchmarks.quality.cells import FULL, QUICK, SETS, Cell
from tests.draws import first
from tf_sparse_attention.trainers.shared import components


def test_a_token_is_far_if_its_context_occurred_only_beyond_the_reach():
    random = np.random.default_rng(0)
    ids, documents = random.integers(0, 4, (3, 60)), np.sort(random.integers(0, 3, (3, 60)))
    found = measure.categories(ids, documents, reach=7)
    for row in range(3):
        for at in range(60):
            earlier = [
                s
                for s in range(1, at)
                if list(ids[row, s - 1 : s + 1]) == list(ids[row, at - 1 : at + 1])
                and len({*documents[row, s - 1 : s + 1], *documents[row, at - 1 : at + 1]}) == 1
            ]
            expected = measure.NONE
            if earlier:
                expected = measure.NEAR if at - max(earlier) <= 7 else measure.FAR
            assert found[row, at] == expected
    assert set(found.ravel()) == {measure.NONE, measure.NEAR, measure.FAR}


KINDS = ["one_softmax", "shifted_keys", "added", "first_successors", "last_successors", "rank_distance", "gate"]
KINDS += ["successors"]


@pytest.mark.parametrize("kind", first([*KINDS, *(kind for kind in config.WHOLE if kind not in KINDS)], 2))
def test_all_kinds_have_as_many_weights_as_local_heads(kind):
    model = components.make_model(config.get_config(f"python-1024-{kind}-10"), 1987)
    count = sum(math.prod(weight.shape) for weight in model.trainable_weights)
    assert abs(count / 653_123 - 1) < 0.005  # those of "local"


def test_heads_grow_with_the_length_and_the_reach_is_that_of_all_layers():
    part = config.parts_of("successors", 4096)[1]
    assert (part["num_clusters"], part["cluster_size"]) == (64, 64)
    assert config.parts_of("dense", 4096)[0]["window"] == 4096
    assert config.REACH == 126


def test_every_cell_has_a_configuration_and_other_cells_are_errors():
    assert len(set(FULL)) == len(FULL) and set(QUICK) <= set(FULL)
    for name in {cell.config for each in SETS.values() for cell in each}:
        assert config.get_config(name).train.num_steps in (500, 3000)
    for name, argument in [
        ("python-1024-local", "config"),
        ("", "config"),
        ("a-64-sparse-1", "kind"),
        ("a-64-last_first_local-1", "kind"),
    ]:
        with pytest.raises(ValueError, match=f"`{argument}`"):
            config.get_config(name)


def test_options_choose_cells():
    assert parse([])[1] == QUICK
    chosen = parse(["--set=decides", "--only", "*-last_gate-*", "*-local-*", "--seeds", "1"])[1]
    assert [(cell.kind, cell.seed) for cell in chosen] == [("local", 1), ("last_gate", 1)]
    assert parse(["--text=books=docs"])[2] == {"python": None, "books": "docs"}


def test_invalid_options_end_with_a_message(capsys):
    for option, message in [
        ("--only=*-sparse-*", "`only` must match cells of the set quick: python-1024-local-500, "),
        ("--seeds=2", "`seeds` must be in 0, 1. Received: [2]"),
        ("--text=python=docs", "must be books=PATH or wiki_xml=PATH. Received: python=docs"),
        ("--text=books", "PATH must be a folder or file that exists. Received: books"),
        ("--text=books=nowhere", "PATH must be a folder or file that exists. Received: books=nowhere"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            parse([option])
        assert message in capsys.readouterr().err


class Scored(keras.layers.Layer):
    """A model whose nats are the position of a token, and of masked calls half of it."""

    def compile(self, loss):
        pass

    def predict_on_batch(self, inputs):
        nats = np.broadcast_to(np.arange(inputs["token_ids"].shape[1], dtype="float32"), inputs["token_ids"].shape)
        return nats * np.where(np.all(inputs.get("padding_mask", True), axis=-1, keepdims=True), 1.0, 0.5)


@pytest.fixture
def scored(monkeypatch):
    """Held-out text of three windows of 8 tokens, the last two of the second padding, and a model that is known."""
    ids, weights = np.ones((3, 8), "int32"), np.ones((3, 8), "float32")
    weights[1, 6:] = 0
    inputs = {"token_ids": ids, "segment_ids": np.zeros((3, 8), "int32")}
    batch = tf.nest.map_structure(tf.constant, (inputs, ids, weights))
    text = held_out.HeldOut(Scored(), SimpleNamespace(num_bytes=71), [batch])
    for module in (measure, ahead):
        monkeypatch.setattr(module, "open_held_out", lambda *args: text)


def test_losses_are_means_over_the_tokens_that_count(scored):
    found = measure.measure("folder", reach=7)
    assert found["loss"] == pytest.approx(71 / 22) and found["bits_per_byte"] == pytest.approx(1 / math.log(2))
    assert found["quarters"] == [0.5, 2.5, 4.5, 6.5] and found["weights"] == 0
    assert found["new"] == 0.5 and found["near"] == pytest.approx(68 / 16)  # from the third token on
    assert found["share_far"] == 0


def test_a_look_ahead_is_the_rise_of_the_loss_with_only_the_past(scored, monkeypatch):
    monkeypatch.setattr(ahead, "NUM_SCORED", 4)
    found = ahead.look_ahead("folder", 1)  # of the full windows, positions 4 to 7; the last masks nothing
    assert found["one_pass"] == 5.5 and found["from_the_past"] == (2 + 2.5 + 3 + 7) / 4 and found["tokens"] == 8


def test_the_page_has_the_results_of_the_file():
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_tables(page) == page  # python -m benchmarks.quality --show --write
    assert "| local |" in page and "wiki_xml, windows of 1,024 tokens, 500 steps" in page


def test_results_are_kept_a_line_each_and_shown_with_their_spread(tmp_path):
    scores = {"bits_per_byte": 1.5, "far": 4.0, "near": 3.0, "new": 5.0, "quarters": [4.0, 3.0]}
    scores |= {"weights": 653_000, "processor_seconds": 130.0}
    chosen = [Cell("python", 1024, kind, 500, seed) for kind in ("local", "nearest") for seed in (0, 1)]
    keys, losses = [{"cell": cell._asdict()} for cell in chosen[:2]], iter([3.5, 3.7])
    for count in (1, 2, 2):  # what the file has is not run again
        results.run_missing(keys[:count], lambda cell: {"loss": next(losses), **scores}, tmp_path / "file")
    read = results.read(tmp_path / "file")
    assert [read[cell]["loss"] for cell in chosen[:2]] == [3.5, 3.7] and len(read) == 2
    lines = results.tables(chosen, read).splitlines()
    assert lines[0] == "python, windows of 1,024 tokens, 500 steps"
    cells = ["653k", "130 (0)", "3.600 (0.100)", "1.500 (0.000)", "4.00 (0.00)", "3.00 (0.00)", "5.00 (0.00)"]
    assert f"| local | 2 | {' | '.join(cells)} | 4.00, 3.00 |" in lines
    assert f"| nearest | 0 {'| - ' * 8}|" in lines
    assert results.read(tmp_path / "none") == {}


def test_logical_lines_that_python_reads_are_counted():
    for text, expected in [
        ("x = 1\n    y = f(2)\nz", (2, 2)),
        ("x = (1,\n  2)\ny\n", (1, 1)),  # the last one does not count
        ('x = "no end\ny = 1\nz', (2, 1)),
        ("x = (1\ny = 1\nz = 2\nlast", (3, 2)),  # a bracket that nothing closes
        ('"""Text\nof lines"""\nlast', (1, 1)),
        ("x = 5 $ 3\nlast", (1, 0)),
        ("", (0, 0)),
    ]:
        assert lines.count_lines(text) == expected, text
