"""The benchmarks of pretrained decoders, with a small random model."""

import json
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import pretrained, pretrained_layers
from tests.convert import gguf_files


@pytest.fixture
def files(tmp_path):
    model, text = tmp_path / "small.gguf", tmp_path / "text.txt"
    gguf_files.write_file(model, "llama", gguf_files.tensors_of("llama", gguf_files.make_backbone("llama")))
    text.write_text("All work and no play makes a dull text. " * 60, encoding="utf-8")
    return str(model), str(text)


@pytest.mark.full
def test_each_pattern_has_its_loss_needles_and_speed(files, tmp_path, monkeypatch, capsys):
    model, text = files
    output = tmp_path / "results.jsonl"
    options = ["--tokens=1100", "--keys=64", "--needles", "0", "--new_tokens=3", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["", model, "--texts", text, *options, "--patterns", "dense", "clusters"])
    pretrained.main()
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line for line in capsys.readouterr().out.splitlines() if line] == output.read_text().splitlines()
    assert [row["attention"] for row in rows] == ["dense"] * 3 + ["clusters"] * 3
    losses = {row["attention"]: row["loss"] for row in rows if "loss" in row}
    assert 0 < abs(losses["clusters"] - losses["dense"]) < 0.5
    assert all(0 < row["needles"] < 10 for row in rows if "needles" in row)
    speeds = [row for row in rows if "same_tokens" in row]
    assert speeds[0]["same_tokens"] == 3 and all(row["prefill_seconds"] > 0 for row in speeds)


def test_answers_of_needles_are_at_the_returned_positions(files):
    def encode(text):
        return np.frombuffer(text.encode(), "uint8")

    ids, at = pretrained.needle_task(encode, pathlib.Path(files[1]), 1100, seed=0)
    text = bytes(ids.astype("uint8").tolist()).decode()
    assert len(ids) == 1100 and at.shape == (8, 5)
    codes = ["".join(text[place] for place in places) for places in at]
    assert all(code.isdigit() and text.count(code) == 2 for code in codes)
    assert sorted(codes, key=text.index) == codes


@pytest.mark.full
def test_each_layer_has_its_error_and_healing_reduces_it(files, monkeypatch, capsys):
    model, text = files
    options = ["--tokens=600", "--keys=64", "--steps=3", "--healing_texts", text, "--patterns", "window"]
    monkeypatch.setattr(sys, "argv", ["", model, "--texts", text, *options])
    pretrained_layers.main()
    *layers, healed = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    assert [row["layer"] for row in layers] == [0, 1]
    assert all(0 < row["mass"] < 1 and 0 < row["error"] < 1 for row in layers)
    monkeypatch.setattr(sys, "argv", ["", model, "--texts", text, "--tokens=600", "--keys=600", "--patterns", "window"])
    pretrained_layers.main()
    whole = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert all(row["mass"] > 0.9999 and row["error"] < 1e-5 for row in whole)
    assert healed["error_after"] < healed["error_before"] and healed["dense"] > 0
