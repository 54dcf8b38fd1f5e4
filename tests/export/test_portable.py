"""LiteRT and ONNX files: outputs equal the model's, and errors name the reason and the alternative."""

import os
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests import conversion_table, remote_paths  # noqa: F401  # the second registers the scheme disk://
from tests.export import source_cases
from tests.export.portable_cases import (
    CASES,
    IMAGE,
    LENGTH,
    LOCAL,
    PAGE,
    REFUSED,
    ROUTING,
    SIZES,
    RunLiteRT,
    decode_error,
    export,
    make,
    needs,
    page_blocks,
    run_examples,
    score_error,
)
from tf_sparse_attention.export import export_litert, export_onnx, litert, portable_functions
from tf_sparse_attention.models import Backbone, LanguageModel

MIXED = "local and routing, three blocks"
TARGETS = ("LiteRT", "ONNX")
TOLERANCE = 1e-4
# What is not of this library: tf2onnx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")


@pytest.fixture(scope="module")
def mixed():
    return make(**{**CASES[MIXED], "num_layers": 2})


@pytest.fixture(scope="module")
def small():
    return make(num_layers=1, attention=[LOCAL])


@pytest.fixture(scope="module", params=TARGETS)
def run(request, mixed, tmp_path_factory):
    needs(request.param)
    return export(request.param, mixed, tmp_path_factory.mktemp("portable"))


def test_a_file_scores_as_the_model_does(mixed, run):
    assert score_error(mixed, run) < TOLERANCE


def test_steps_from_an_empty_cache_are_the_full_pass(mixed, run):
    assert decode_error(mixed, run) < TOLERANCE


def test_rows_are_at_positions_of_their_own(mixed, run):
    assert decode_error(mixed, run, lengths=(5, 11)) < TOLERANCE


@pytest.mark.large
@pytest.mark.filterwarnings("ignore:.*is not causal")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_models_of_every_pattern_answer_as_they_do_or_are_refused_with_the_reason(name, target, tmp_path):
    needs(target)
    model = make(**CASES[name])
    for signature, error in (("score", score_error), ("decode", decode_error)):
        is_refused = (name, target, signature) in REFUSED
        try:
            run = export(target, model, tmp_path, (signature,))
        except ValueError as refusal:
            assert is_refused, refusal
            assert re.search(r"Received: .+\.$|`signatures=\('score',\)` to leave decoding out\.$", str(refusal))
        else:
            assert not is_refused, f"{name} has a file of {signature} for {target} now: take it from REFUSED"
            assert error(model, run) < TOLERANCE


def test_a_litert_file_has_the_weights_once_and_no_other_operations_than_builtin_ones(tmp_path):
    model = LanguageModel(Backbone(20_000, 1, 16, [LOCAL]))
    path = export_litert(model, tmp_path / "folder" / "model.tflite", **SIZES)
    assert 3.8 * model.count_params() < path.stat().st_size < 4.2 * model.count_params()
    assert b"Flex" not in path.read_bytes()


def test_one_file_has_the_signatures_that_are_wanted(small, tmp_path):
    written = export_litert(small, f"disk://{tmp_path}/bucket/model.tflite", **SIZES, signatures=["score"])
    path = tmp_path / "bucket" / "model.tflite"
    assert str(written) == f"disk://{path}"
    assert score_error(small, RunLiteRT(path)) < TOLERANCE
    with pytest.raises(KeyError):
        RunLiteRT(path)("decode", {})


@pytest.mark.pages
@pytest.mark.parametrize("number", [1, 2])
def test_the_examples_of_the_page_continue_and_score_as_the_model_does(number, tmp_path, monkeypatch):
    needs(TARGETS[number - 1])
    keras.utils.set_random_seed(4)
    model = LanguageModel(Backbone(120, 1, 16, [{**LOCAL, "position": "rotary"}, ROUTING], intermediate_dim=24))
    blocks = page_blocks()
    made = "\n".join(line for line in blocks[0].splitlines() if "import" in line or ("onnx" in line) == (number == 2))
    run_examples(made, tmp_path, monkeypatch, model=model)
    printed = run_examples(blocks[number], tmp_path, monkeypatch)
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


def test_masks_at_which_the_interpreter_would_end_the_process_are_refused(small):
    inputs = [tf.TensorSpec((2, 1, 2, 1, 2), tf.bool), tf.TensorSpec((1, 2, 1, 2, 1), tf.bool)]
    functions = {"score": portable_functions.PortableFunction(tf.logical_and, inputs, {})}
    with pytest.raises(ValueError, match=r"the reason: no LogicalAnd that broadcasts more than 4 axes\.$"):
        litert._check_axes(small, functions)


def test_answers_that_are_not_those_of_the_model_are_not_written(small, tmp_path, monkeypatch):
    model, path = small, tmp_path / "model.tflite"
    path.write_bytes(b"earlier")
    make_runner = litert._make_runner
    monkeypatch.setattr(
        litert,
        "_make_runner",
        lambda content: lambda *given: {name: x + 1 for name, x in make_runner(content)(*given).items()},
    )
    with pytest.raises(
        ValueError, match=r"outputs of the LiteRT file differ .* Received: 100% of `nats` of `score` differ"
    ):
        export_litert(model, path, **SIZES, signatures=("score",))
    assert os.listdir(tmp_path) == ["model.tflite"]
    assert path.read_bytes() == b"earlier"


def test_a_model_without_a_cache_is_scored_alone(tmp_path):
    model = make(attention=[{**ROUTING, "selection": "top_k"}], num_layers=1)
    with pytest.raises(ValueError, match=r"decode with a cache: with selection='top_k'.*`signatures=\('score',\)`"):
        export_litert(model, tmp_path / "model.tflite", **SIZES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"causal": False}, r"`model` must be causal\. Received: .*causal=False"),
        ({"dtype": "mixed_bfloat16"}, r"`model` must compute in float32\..* Received: compute dtype bfloat16"),
    ],
)
def test_models_that_do_not_fit_are_refused(settings, message, tmp_path):
    backbone = Backbone(30, 1, 16, [LOCAL], **settings)
    with pytest.raises(ValueError, match=message):
        export_litert(LanguageModel(backbone, dtype=settings.get("dtype")), tmp_path / "model.tflite")


def test_a_model_of_another_kind_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"`model` must be a `LanguageModel` or .*`TokenClassifier`\. Received: model=<"
    ):
        export_litert(keras.Sequential(), tmp_path / "model.tflite")


def test_a_model_that_is_too_large_for_such_a_file_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(portable_functions, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match=r"less than 100 bytes.* Received: weights of [\d,]+ bytes"):
        export_litert(small, tmp_path / "model.tflite")


def test_no_more_positions_than_the_model_has(tmp_path):
    model = make(attention=[LOCAL], num_layers=1, embedding={"grid": (4, 4)})
    for name in ("sequence_length", "max_length"):
        with pytest.raises(
            ValueError, match=rf"`{name}` must be at most the 16 positions .* Received: {name}={LENGTH}"
        ):
            export_litert(model, tmp_path / "model.tflite", **{"sequence_length": 16, "max_length": 16, name: LENGTH})


@pytest.mark.parametrize("name", ["batch_size", "sequence_length", "max_length"])
def test_sizes_must_be_positive(small, tmp_path, name):
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive integer\. Received: {name}=0\."):
        export_litert(small, tmp_path / "model.tflite", **{**SIZES, name: 0})


@pytest.mark.parametrize("signatures", [(), "score", ("generate",)])
def test_unknown_signatures_are_refused(small, tmp_path, signatures):
    with pytest.raises(ValueError, match=r"`signatures` must be some of \('score', 'decode'\)\. Received: signatures="):
        export_litert(small, tmp_path / "model.tflite", signatures=signatures)


def test_names_that_would_be_the_same_are_refused(tmp_path):
    model = make(attention=[{**LOCAL, "name": "a"}], num_layers=1)
    empty = model.init_cache(1, 4)
    part = empty["block_0"]["attention"]
    part["a_key"] = {"": part["a"]["part_0"]["key"]}
    part["a"]["key_"] = part["a"]["part_0"]["key"]
    model.init_cache = lambda *sizes: empty
    with pytest.raises(ValueError, match=r"whose names differ when joined by '_'\. Received: \["):
        export_litert(model, tmp_path / "model.tflite", **SIZES)


def test_a_cache_that_does_not_start_from_zeros_is_refused(tmp_path):
    model = make(attention=[LOCAL], num_layers=1)
    empty = keras.tree.map_structure(lambda x: x + 1, model.init_cache(1, 4))
    model.init_cache = lambda *sizes: empty
    with pytest.raises(ValueError, match=r"an initial cache of zeros\. Received: other values in block_0_attention_"):
        export_litert(model, tmp_path / "model.tflite", **SIZES)


@pytest.mark.parametrize("path", ["model", "disk:///tmp/model"])
def test_a_litert_file_has_its_suffix(small, path):
    with pytest.raises(ValueError, match=r"`path` must be a file that ends with '\.tflite'\. Received: path="):
        export_litert(small, path)


def test_a_folder_with_other_files_is_not_overwritten(small, tmp_path):
    needs("ONNX")
    (tmp_path / "thesis.txt").touch()
    for path in (tmp_path, tmp_path / "thesis.txt", f"disk://{tmp_path}"):
        with pytest.raises(ValueError, match=r"`path` must be a new folder, .* Received: path="):
            export_onnx(small, path)


def test_without_its_packages_onnx_says_what_to_install(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-sparse-attention\[onnx\]'"):
        export_onnx(small, tmp_path / "model")


def test_another_backend_is_refused_with_the_way_out(small, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    message = r"LiteRT and ONNX files can be written .*`model\.save\('model\.keras'\)`.* Received: backend='jax'\."
    with pytest.raises(ValueError, match=message):
        export_litert(small, tmp_path / "model.tflite")


# The tables of docs/portable.md, and which of their cells are reasons.
PAGE_TABLES = [(conversion_table.MODELS, REFUSED), (conversion_table.SOURCES, source_cases.REFUSED)]


@pytest.mark.parametrize(("table", "refused"), PAGE_TABLES)
def test_the_tables_of_the_page_have_every_case_and_a_reason_where_there_is_no_file(table, refused):
    lines = conversion_table.lines_of(table, PAGE.read_text(encoding="utf-8"))
    assert [name for name, *_ in lines] == list(table.cases)
    without = {
        (name, *column)
        for name, *cells in lines
        for column, cell in zip(table.columns, cells, strict=True)
        if not re.fullmatch(r"\de-\d\d", cell)
    }
    assert without == refused


@pytest.mark.parametrize(
    ("name", "target", "signature"),
    [
        ("hashing (LSH), chunks", "LiteRT", "decode"),
        pytest.param("routing, top_keys", "ONNX", "decode", marks=pytest.mark.full),
    ]
    + [pytest.param(*case, marks=pytest.mark.large) for case in conversion_table.every_cell(conversion_table.SOURCES)],
)
def test_encoder_decoders_of_every_pattern_answer_as_they_do_or_are_refused(name, target, signature):
    needs(target)
    found = conversion_table.cell(conversion_table.SOURCES, name, target, signature)
    if (name, target, signature) in source_cases.REFUSED:
        assert not re.fullmatch(r"\de-\d\d", found), f"{name} has a file now: take it from REFUSED"
    else:
        assert float(found) < TOLERANCE


def test_exports_are_reached_from_the_front_door():
    assert (tsa.export.export_litert, tsa.export.export_onnx) == (export_litert, export_onnx)
