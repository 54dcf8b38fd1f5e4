"""LiteRT and ONNX files of encoder-decoders, speech recognizers and classifiers have the outputs of the model."""

import re

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.draws import first
from tests.export.portable_cases import (
    HEADS,
    LOCAL,
    ROUTING,
    SIZES,
    export,
    make_encoder,
    make_recognizer,
    needs,
    numbers,
    page_blocks,
    randomized,
    run_page,
)
from tests.export.source_cases import DENSE, decode_error, logits_of, make, random_rows
from tf_sparse_attention.export import export_litert
from tf_sparse_attention.generation import ctc_greedy
from tf_sparse_attention.models import SequenceClassifier, SpanAnswerer, TokenClassifier

TOLERANCE = 1e-4
SOURCE_LENGTH = 13
ACROSS = {"layer": "LocalAttention", **HEADS, "block_size": 4, "key_block_size": 3}
# What is not of this library: tf2onnx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")


@pytest.fixture(scope="module")
def model():
    return make("decode", ACROSS, attention=[{**LOCAL, "position": "rotary"}])


@pytest.fixture(scope="module", params=["LiteRT", pytest.param("ONNX", marks=pytest.mark.full)])
def run(request, model, tmp_path_factory):
    needs(request.param)
    return export(request.param, model, tmp_path_factory.mktemp("sources"), source_length=SOURCE_LENGTH)


@pytest.mark.full
def test_targets_are_scored_and_decoded_given_their_sources_padded_or_not(model, run):
    source, targets = random_rows(SOURCE_LENGTH)
    logits = logits_of(model, source, np.pad(targets[:, :-1], [(0, 0), (1, 0)]))
    wanted = -np.take_along_axis(numbers(keras.ops.log_softmax(logits)), targets[..., None], axis=-1)[..., 0]
    found = run("score", {**source, "token_ids": targets})["nats"]
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
    other = run("score", {**source, "num_source_tokens": np.array([3, 6], "int32"), "token_ids": targets})["nats"]
    assert np.abs(other - found)[0].max() > 0.01
    assert decode_error(model, run, SOURCE_LENGTH) < TOLERANCE


@pytest.mark.pages
def test_the_example_of_the_page_writes_the_targets_of_the_model(tmp_path, monkeypatch):
    translator = make("decode", DENSE, {"vocabulary_size": 120})
    made, loop = page_blocks()[3:]
    run_page(made, tmp_path, monkeypatch, tsa=tsa, translator=translator)
    found = [int(number) for number in re.findall(r"\d+", run_page(loop, tmp_path, monkeypatch))]
    assert found == translator.generate([74, 99, 110, 110, 113, 1], 19).tolist()
    assert len(list((tmp_path / "translator_onnx").iterdir())) == 3


ROW_LENGTH, IDS = 21, 30


@pytest.mark.full
@pytest.mark.parametrize("target", first(["LiteRT", "ONNX"], 1))
def test_recordings_are_transcribed_as_by_the_model(target, tmp_path):
    needs(target)
    model = make_recognizer(attention=[{**LOCAL, "position": "rotary"}])
    features = 8 * np.random.default_rng(0).normal(size=(2, ROW_LENGTH, 6)).astype("float32")
    padded = features.copy()
    padded[1, 10:] = 1e3
    run = export(target, model, tmp_path, sequence_length=ROW_LENGTH)
    found = run("transcribe", {"features": padded, "num_frames": np.array([ROW_LENGTH, 10], "int32")})
    whole, short = numbers(model(features[:1])), numbers(model(features[1:, :10]))
    np.testing.assert_allclose(found["log_probs"][:1], whole, atol=TOLERANCE)
    np.testing.assert_allclose(found["log_probs"][1:, :5], short, atol=TOLERANCE)
    np.testing.assert_array_equal(found["label_ids"][:1], numbers(ctc_greedy(whole)))
    np.testing.assert_array_equal(found["label_ids"][1:, :5], numbers(ctc_greedy(short)))
    assert len(set(found["label_ids"].ravel().tolist())) > 2
    assert not found["label_ids"][1, 5:].any()


@pytest.mark.parametrize(
    ("target", "kind", "options"),
    [
        ("ONNX", TokenClassifier, {}),
        pytest.param("LiteRT", SequenceClassifier, {"pooling": "mean"}, marks=pytest.mark.full),
    ],
)
def test_texts_and_tokens_have_the_classes_that_the_model_gives_them(target, kind, options, tmp_path):
    needs(target)
    model = randomized(kind(make_encoder(IDS), 3, **options))
    ids = np.random.default_rng(0).integers(IDS, size=(2, ROW_LENGTH), dtype="int32")
    run = export(target, model, tmp_path, sequence_length=ROW_LENGTH)
    found = run("classify", {"token_ids": ids, "num_tokens": np.array([ROW_LENGTH, 10], "int32")})["probabilities"]
    wanted = [numbers(keras.ops.softmax(model(row)))[0] for row in (ids[:1], ids[1:, :10])]
    np.testing.assert_allclose(found[0], wanted[0], atol=TOLERANCE)
    np.testing.assert_allclose(found[1][: len(wanted[1])], wanted[1], atol=TOLERANCE)


def test_models_and_sizes_that_do_not_fit_are_errors_that_name_the_reason(tmp_path):
    few_positions, half = make_recognizer({"grid": (2, 5)}), make_encoder(IDS, dtype="mixed_bfloat16")
    without_cache = make("decode", DENSE, attention=[{**ROUTING, "selection": "top_k"}])
    of_features = make("decode", DENSE, {"vocabulary_size": None, "embedding": {"dim": 5}})
    few_sources, sizes = make("decode", DENSE, {"embedding": {"grid": (2, 5)}}), {**SIZES, "source_length": 13}
    for model, settings, message in [
        (without_cache, sizes, r"with a cache: .*`signatures=\('score',\)` to leave"),
        (of_features, sizes, "token ids, .*features of size 5"),
        (few_sources, sizes, "`source_length` must be at most the 10 positions.*=13"),
        (SpanAnswerer(make_encoder(IDS)), {}, "`model` must be a `LanguageModel` or .*<SpanAnswerer"),
        (make_recognizer(), {"signatures": ("score",)}, "`signatures`.*'transcribe'.*'score'"),
        (few_positions, {"sequence_length": 21}, "`sequence_length` must be at most the 20 positions"),
        (SequenceClassifier(half, 3), {}, "`model` must compute in float32.*bfloat16"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_litert(model, tmp_path / "model.tflite", **settings)
