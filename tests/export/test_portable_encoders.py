"""LiteRT and ONNX files of speech recognizers and classifiers: outputs equal the model's, padded or not."""

import keras
import numpy as np
import pytest

from tests.draws import first
from tests.export.portable_cases import LOCAL, export, needs, numbers, randomized
from tf_sparse_attention.export import export_litert
from tf_sparse_attention.generation import ctc_greedy
from tf_sparse_attention.models import Backbone, SequenceClassifier, SpanAnswerer, SpeechRecognizer, TokenClassifier

TARGETS = ("LiteRT", "ONNX")
TOLERANCE = 1e-4
LENGTH, FEATURES, IDS = 21, 6, 30
# What is not of this library: tf2onnx.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")


def make_encoder(vocabulary_size, attention=(LOCAL,), **options):
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 24, "seed": 0}
    return Backbone(vocabulary_size, attention=list(attention), causal=False, **sizes, **options)


def make_recognizer(embedding=(), **options):
    encoder = make_encoder(None, embedding={"dim": 8, **dict(embedding)}, **options)
    normalized = {"feature_mean": range(FEATURES), "feature_std": [2.0] * FEATURES}
    return randomized(SpeechRecognizer(encoder, 3, num_features=FEATURES, subsampling=2, **normalized))


@pytest.mark.parametrize("target", first(TARGETS, 1))
def test_recordings_are_transcribed_as_by_the_model(target, tmp_path):
    needs(target)
    model = make_recognizer(attention=[{**LOCAL, "position": "rotary"}])
    features = 8 * np.random.default_rng(0).normal(size=(2, LENGTH, FEATURES)).astype("float32")
    padded = features.copy()
    padded[1, 10:] = 1e3
    run = export(target, model, tmp_path, sequence_length=LENGTH)
    found = run("transcribe", {"features": padded, "num_frames": np.array([LENGTH, 10], "int32")})
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
    ids = np.random.default_rng(0).integers(IDS, size=(2, LENGTH), dtype="int32")
    run = export(target, model, tmp_path, sequence_length=LENGTH)
    found = run("classify", {"token_ids": ids, "num_tokens": np.array([LENGTH, 10], "int32")})["probabilities"]
    wanted = [numbers(keras.ops.softmax(model(row)))[0] for row in (ids[:1], ids[1:, :10])]
    np.testing.assert_allclose(found[0], wanted[0], atol=TOLERANCE)
    np.testing.assert_allclose(found[1][: len(wanted[1])], wanted[1], atol=TOLERANCE)


def test_models_and_sizes_that_do_not_fit_are_errors_that_name_the_reason(tmp_path):
    few_positions, half = make_recognizer({"grid": (2, 5)}), make_encoder(IDS, dtype="mixed_bfloat16")
    for model, settings, message in [
        (SpanAnswerer(make_encoder(IDS)), {}, "`model` must be a `LanguageModel` or .*<SpanAnswerer"),
        (make_recognizer(), {"signatures": ("score",)}, "`signatures`.*'transcribe'.*'score'"),
        (few_positions, {"sequence_length": 21}, "`sequence_length` must be at most the 20 positions"),
        (SequenceClassifier(half, 3), {}, "`model` must compute in float32.*bfloat16"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_litert(model, tmp_path / "model.tflite", **settings)
