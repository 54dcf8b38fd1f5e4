"""LiteRT and ONNX files: outputs equal the model's, and errors name the reason and the alternative."""

import os
import re
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from docs.tables import conversion
from tests import remote_paths  # noqa: F401  # registers the scheme disk://
from tests.draws import first
from tests.export.portable_cases import (
    CASES,
    IMAGE,
    LENGTH,
    LOCAL,
    PAGE,
    ROUTING,
    SIZES,
    decode_error,
    export,
    make,
    needs,
    page_blocks,
    run_page,
    score_error,
)
from tf_sparse_attention.export import export_litert, export_onnx, input_checks, portable
from tf_sparse_attention.models import Backbone, LanguageModel

MIXED = "local and routing, three blocks"
TARGETS = ("LiteRT", "ONNX")
TOLERANCE = 1e-4
# What is not of this library: tf2onnx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")


@pytest.fixture(scope="module")
def small():
    return make(num_layers=1, attention=[LOCAL])


@pytest.fixture(scope="module", params=first(["LiteRT-small", "ONNX-small", "LiteRT-mixed", "ONNX-mixed"], 1))
def model_and_run(request, small, tmp_path_factory):
    """A model, local and routed heads or only local heads, and its file."""
    target, kind = request.param.split("-")
    needs(target)
    mixed = {**CASES[MIXED], "num_layers": 1, "attention": CASES[MIXED]["attention"]["parts"]}
    model = make(**mixed) if kind == "mixed" else small
    return model, export(target, model, tmp_path_factory.mktemp("portable"))


def test_a_file_scores_and_decodes_as_the_model_with_rows_at_different_positions(model_and_run):
    assert score_error(*model_and_run) < TOLERANCE
    assert decode_error(*model_and_run) < TOLERANCE
    assert decode_error(*model_and_run, lengths=(5, 11)) < TOLERANCE


@pytest.mark.full
def test_a_litert_file_has_the_weights_once_and_only_builtin_operations_and_can_be_at_an_address(tmp_path):
    model = LanguageModel(Backbone(20_000, 1, 16, [LOCAL]))
    path = tmp_path / "folder" / "model.tflite"
    assert str(export_litert(model, f"disk://{path}", **SIZES)) == f"disk://{path}"
    assert 3.8 * model.count_params() < path.stat().st_size < 4.2 * model.count_params()
    assert b"Flex" not in path.read_bytes()


@pytest.mark.pages
@pytest.mark.parametrize("number", [1, 2])
def test_the_examples_of_the_page_continue_and_score_as_the_model_does(number, tmp_path, monkeypatch):
    needs(TARGETS[number - 1])
    keras.utils.set_random_seed(4)
    model = LanguageModel(Backbone(120, 1, 16, [{**LOCAL, "position": "rotary"}, ROUTING], intermediate_dim=24))
    blocks = page_blocks()
    made = "\n".join(line for line in blocks[0].splitlines() if "import" in line or ("onnx" in line) == (number == 2))
    run_page(made, tmp_path, monkeypatch, model=model)
    printed = run_page(blocks[number], tmp_path, monkeypatch)
    text, nats = re.fullmatch(r"\[(.*)\] (\S+)\n", printed).groups()
    text = [int(number) for number in text.split(", ")]
    assert text[:3] == [0, 74, 107]
    assert len(text) == 21
    logits = np.array(model(np.array([text[:-1]])))[0]
    assert text[3:] == logits[2:].argmax(-1).tolist()
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(float(nats), -log_probabilities[np.arange(20), text[1:]].sum(), rtol=1e-5)


def test_operations_that_litert_lacks_are_named(tmp_path, capfd):
    model = make(attention=[IMAGE], num_layers=1)
    with pytest.raises(ValueError, match=r"`export_language_model`\. Received: layers LocalAtt.*no operation"):
        export_litert(model, tmp_path / "model.tflite", **SIZES, signatures=("score",))
    assert not list(tmp_path.iterdir())
    assert "error:" not in capfd.readouterr().err


def test_masks_that_would_abort_the_interpreter_are_errors():
    inputs = [tf.TensorSpec((2, 1, 2, 1, 2), tf.bool), tf.TensorSpec((1, 2, 1, 2, 1), tf.bool)]
    function = tf.function(tf.logical_and, input_signature=inputs)
    with pytest.raises(NotImplementedError, match=r"no LogicalAnd that broadcasts more than 4 axes$"):
        portable._check_axes([function.get_concrete_function().graph])


def test_a_file_is_not_replaced_by_one_with_other_outputs(small, tmp_path, monkeypatch):
    path, make_runner = tmp_path / "model.tflite", portable._litert_runner

    def make_wrong(content):
        run = make_runner(content)
        return lambda *given: {name: x + 1 for name, x in run(*given).items()}

    path.write_bytes(b"an earlier file")
    monkeypatch.setattr(portable, "_litert_runner", make_wrong)
    with pytest.raises(ValueError, match=r"outputs of the LiteRT file differ .* 100% of `nats` of `score` differ"):
        export_litert(small, path, **SIZES, signatures=("score",))
    assert os.listdir(tmp_path) == ["model.tflite"] and path.read_bytes() == b"an earlier file"


def test_models_and_arguments_that_do_not_fit_are_errors_that_name_the_reason(small, tmp_path, monkeypatch, subtests):
    without_cache = make(attention=[{**ROUTING, "selection": "top_k"}], num_layers=1)
    not_causal = LanguageModel(Backbone(30, 1, 16, [LOCAL], causal=False))
    half = LanguageModel(Backbone(30, 1, 16, [LOCAL], dtype="mixed_bfloat16"), dtype="mixed_bfloat16")
    of_16 = make(attention=[LOCAL], num_layers=1, embedding={"grid": (4, 4)})
    good, few = tmp_path / "model.tflite", {"sequence_length": 16, "max_length": 16}
    for model, path, settings, message in [
        (without_cache, good, SIZES, r"decode with a cache: with selection='top_k'.*`signatures=\('score',\)`"),
        (not_causal, good, {}, "`model` must be causal"),
        (half, good, {}, "`model` must compute in float32.*bfloat16"),
        (keras.Sequential(), good, {}, "`model` must be a `LanguageModel` or .*`TokenClassifier`"),
        *((of_16, good, {**few, name: LENGTH}, f"`{name}` must be at most the 16 positions") for name in few),
        *((small, good, {**SIZES, name: 0}, f"`{name}`") for name in SIZES),
        *((small, good, {"signatures": names}, "`signatures`") for names in ((), "score", ("generate",))),
        (small, "model", {}, r"`path` must be a file that ends with '\.tflite'"),
        (small, "disk:///tmp/model", {}, r"`path` must be a file that ends with '\.tflite'"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            export_litert(model, path, **settings)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"less than 100 bytes.* weights of"):
        patch.setattr(portable, "MAX_FILE_BYTES", 100)
        export_litert(small, good)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"LiteRT and ONNX .*backend='jax'"):
        jax = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "jax"))
        patch.setattr(input_checks, "keras", jax)
        export_litert(small, good)
    assert not list(tmp_path.iterdir())


def test_caches_with_joined_names_that_are_equal_or_that_do_not_start_from_zeros_are_errors(tmp_path):
    model = make(attention=[{**LOCAL, "name": "a"}], num_layers=1)
    zeros = model.init_cache(1, 4)
    ones = keras.tree.map_structure(lambda x: x + 1, zeros)
    part = zeros["block_0"]["attention"]
    part["a_key"] = {"": part["a"]["part_0"]["key"]}
    part["a"]["key_"] = part["a"]["part_0"]["key"]
    for cache, message in [
        (zeros, "whose names differ when joined by '_'"),
        (ones, "an initial cache of zeros.*other values in block_0_attention_"),
    ]:
        model.init_cache = lambda *sizes, cache=cache: cache
        with pytest.raises(ValueError, match=message):
            export_litert(model, tmp_path / "model.tflite", **SIZES)


def test_onnx_files_need_their_packages_and_a_new_folder(small, tmp_path, monkeypatch):
    needs("ONNX")
    (tmp_path / "thesis.txt").touch()
    for path in (tmp_path, tmp_path / "thesis.txt", f"disk://{tmp_path}"):
        with pytest.raises(ValueError, match="`path` must be a new folder"):
            export_onnx(small, path)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[onnx\]'"):
        export_onnx(small, tmp_path / "model")


MODELS, SOURCES = conversion.TABLES
# A cell of the tables of docs/portable.md; other cells have the reason why there is no file.
NUMBER = re.compile(r"\de-\d\d")
CELLS = [(SOURCES, "hashing (LSH), chunks", "LiteRT", "decode"), (SOURCES, "routing, top_keys", "ONNX", "decode")]
EVERY_CELL = [(table, *cell) for table in (MODELS, SOURCES) for cell in conversion.every_cell(table)]


def lines_of_the_page(table):
    return conversion.lines_of(table, PAGE.read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore:.*is not causal")
@pytest.mark.parametrize(
    ("table", "name", "target", "signature"),
    first(CELLS, 1) + [pytest.param(*cell, marks=pytest.mark.large) for cell in EVERY_CELL],
)
def test_files_of_every_pattern_equal_the_model_or_are_errors_with_the_reason(table, name, target, signature):
    needs(target)
    found = conversion.cell(table, name, target, signature)
    cells = next(cells for line, *cells in lines_of_the_page(table) if line == name)
    if NUMBER.fullmatch(cells[table.columns.index((target, signature))]):
        assert float(found) < TOLERANCE
    else:
        assert not NUMBER.fullmatch(found), f"{name} has a file now, other than on the page"


@pytest.mark.parametrize("table", [MODELS, SOURCES])
def test_the_tables_of_the_page_have_every_case(table):
    assert [name for name, *_ in lines_of_the_page(table)] == list(table.cases)
