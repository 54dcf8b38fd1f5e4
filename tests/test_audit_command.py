"""The audit as a command: what it takes, what it prints, and its exit status."""

import json
import subprocess
import sys
import types

import keras
import pytest

from tests.pages import ROOT
from tf_sparse_attention.audit import main

CODE = """
import keras
import beside

class Flipped(keras.layers.Layer):
    def call(self, x):
        return keras.ops.flip(x, axis=1)

def causal():
    return keras.layers.Dense(3)

def leaking():
    return beside.named(Flipped)

def function(x):
    return x + 1

def broken():
    raise KeyError("first line\\nsecond line")

def listed():
    raise ValueError("one of:\\n  this\\n  that")

layer = keras.layers.Dense(2)
number = 3
"""


@pytest.fixture
def code(tmp_path):
    (tmp_path / "beside.py").write_text("def named(layer):\n    return layer(name='flipped')\n", encoding="utf-8")
    path = tmp_path / "audited_code.py"
    path.write_text(CODE, encoding="utf-8")
    yield path
    for module in ("audited_code", "beside"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", ["causal", "function", "layer"])
def test_a_causal_target_in_code_gives_0(name, code, capsys):
    assert main([f"{code}:{name}", "--length", "6", "--quick"]) == 0
    assert capsys.readouterr().out.endswith("\ncausal\n")


def test_a_leak_gives_3_and_is_told_in_json(code, capsys):
    assert main([f"{code}:leaking", "--length=6", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [leak["layer"] for leak in report["leaks"]] == ["flipped", "flipped"]


def test_a_file_of_a_model_with_its_own_layers_is_audited(code, tmp_path, capsys):
    namespace = {}
    exec(CODE.replace("import beside\n", ""), namespace)
    model = keras.Sequential([keras.Input((None, 4)), namespace["Flipped"](name="flipped")])
    model.save(tmp_path / "model.keras")
    command = [f"{tmp_path}/model.keras", "--length=6", "--quick"]
    assert main([*command, f"--custom={code}"]) == 3
    assert "in layer 'flipped'" in capsys.readouterr().out
    assert main(command) == 2
    assert "error: `--custom` must name a file that defines Flipped, a layer of " in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_length_that_shows_too_little_is_a_warning_of_one_line(code, capsys):
    code.write_text("import tf_sparse_attention as tsa\nlayer = tsa.layers.LocalAttention(2, 4, window=6)\n", "utf-8")
    assert main([f"{code}:layer", "--length=6", "--quick", "--json"]) == 0
    found = capsys.readouterr()
    (said,) = (line for line in found.err.splitlines() if "warn" in line.lower())
    assert said.startswith("warning: `sequence_length` should be at least 7: ")
    assert [f"warning: {warning}" for warning in json.loads(found.out)["warnings"]] == [said]


def test_what_cannot_be_audited_gives_2_and_one_line(code, capsys, subtests):
    for command, said in {
        f"{code}:none": "must name a model or function in",
        f"{code}:number": "must name a model or function in",
        f"{code}:broken": "KeyError: ",
        f"{code}:listed": "error: one of: this that (--debug",
        "nowhere.py:model": "must name files that exist. Received: nowhere.py.",
        "nowhere.keras": "must name files that exist. Received: nowhere.keras.",
        "model.h5": "must be NAME.keras, FILE.py:NAME, keras_hub:PRESET or a run directory. Received: model.h5.",
        f"{code}:causal --length=1": "`--length` must be at least 2. Received: 1.",
        f"{code}:causal --custom=nowhere.py": "`--custom` applies to NAME.keras only.",
        f"{code}:causal --random_weights": "`--random_weights` applies to keras_hub:PRESET only.",
    }.items():
        with subtests.test(command):
            assert main(command.split()) == 2
            error = capsys.readouterr().err
            assert error.startswith("error: ") and said in error and error.count("\n") == 1


def test_a_target_of_which_nothing_can_be_said_gives_2(code, capsys):
    code.write_text("import keras\nlayer = keras.layers.Dense(3, kernel_initializer='zeros')\n")
    assert main([f"{code}:layer", "--length=6"]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "inconclusive"
    assert said[-2] == "inconclusive perturbation check: no output depends on an input"


def test_a_preset_is_asked_for_without_its_weights(monkeypatch, capsys):
    asked = []

    def from_preset(*args, **kwargs):
        asked.append((args, kwargs))
        return keras.layers.Dense(3)

    class Backbone:
        """None is registered."""

    causal = types.SimpleNamespace(from_preset=from_preset)
    models = types.SimpleNamespace(CausalLM=causal, Backbone=Backbone, Task=Backbone)
    monkeypatch.setitem(sys.modules, "keras_hub", types.SimpleNamespace(models=models))
    assert main(["keras_hub:gpt2", "--length=6", "--quick", "--random_weights"]) == 0
    assert asked == [(("gpt2",), {"preprocessor": None, "load_weights": False})]
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    assert main(["keras_hub:gpt2"]) == 2
    assert "needs KerasHub: pip install keras-hub" in capsys.readouterr().err


@pytest.mark.full
def test_a_preset_of_keras_hub_is_audited(tmp_path, capsys):
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 20, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = keras_hub.models.GPT2Backbone(**sizes, max_sequence_length=16)
    backbone.save_to_preset(str(tmp_path))
    assert main([f"keras_hub:{tmp_path}", "--length=8", "--quick", "--num_cuts=2"]) == 0
    assert capsys.readouterr().out.endswith("\ncausal\n")


@pytest.mark.full
def test_the_program_runs_as_a_module(code):
    command = [sys.executable, "-m", "tf_sparse_attention.audit", f"{code}:leaking", "--length=6", "--quick"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 3, process.stderr
    assert process.stdout.endswith("\nNOT CAUSAL\n")
