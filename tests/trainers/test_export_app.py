"""Export of the run of a language model, and the test of the exported model."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import ROOT
from tests.export.portable_cases import RunLiteRT
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.trainers.shared import exporting, workdir
from tf_sparse_attention.trainers.shared.exporting import in_float32, run_without_library
from tf_sparse_attention.trainers.tasks.language_model import LINE


def nats_of(model, ids):
    logits = model(np.pad(ids[:, :-1], [(0, 0), (1, 0)]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits).numpy()


@pytest.mark.full
def test_the_program_exports_a_run_with_tensorflow_whatever_the_backend_and_scores_a_line(untrained):
    command = [sys.executable, "-m", "tf_sparse_attention.trainers.export", f"--workdir={untrained}"]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    result = subprocess.run(
        [*command, "--nojit_compile"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    nats = nats_of(workdir.load_model(untrained), workdir.load_tokenizer(untrained).tokenize(LINE)[None]).sum()
    assert result.stdout == (
        f"loaded in a process without the library, 'def main():' has {nats / math.log(2) / 11:.4f} bits per byte "
        f"({nats:.2f} nats, 11 bytes)\n"
    )
    # `score` has windows of the training length.
    assert "consecutive windows of 64 tokens." in (untrained / "saved_model" / "README.md").read_text(encoding="utf-8")


def test_a_saved_model_that_needs_the_library_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RUN_WITHOUT_LIBRARY", "raise ValueError('no such signature')")
    with pytest.raises(RuntimeError, match=r"(?s)The SavedModel .* does not work without the library:.*no such"):
        run_without_library(tmp_path, "score", {"text": ["a line"]})


@pytest.mark.full
def test_a_litert_file_has_rows_as_long_as_in_training(untrained):
    test_result = exporting.export(untrained, "litert", ["score"])["test_result"]
    assert test_result == "outputs for random rows of length 64 match the model"
    ids = np.random.default_rng(0).integers(1, 257, size=(1, 64), dtype="int32")
    found = RunLiteRT(untrained / "model.tflite")("score", {"token_ids": ids})["nats"]
    np.testing.assert_allclose(found, nats_of(workdir.load_model(untrained), ids), atol=1e-4)


def make_model(dtype=None, **options):
    heads = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
    return LanguageModel(Backbone(10, 1, 8, [heads], dtype=dtype, **options), dtype=dtype)


def test_arguments_of_another_format_and_models_of_masked_tokens_are_errors(untrained, monkeypatch):
    with pytest.raises(ValueError, match="`--weight_dtype`"):
        exporting.export(untrained, "onnx", weight_dtype="int8")
    with pytest.raises(ValueError, match="`--signatures`"):
        exporting.export(untrained, signatures=["score"])
    monkeypatch.setattr(workdir, "load_model", lambda folder: make_model(causal=False))
    with pytest.raises(ValueError, match=r"masked language model, .*`task=classify`"):
        exporting.export(untrained, "litert")


def test_files_of_a_run_in_half_precision_are_of_the_same_weights_in_single_precision():
    half, plain = make_model(dtype="mixed_bfloat16"), make_model()
    found = in_float32(half)
    assert {layer.compute_dtype for layer in found._flatten_layers()} == {"float32"}
    for one, other in zip(found.get_weights(), half.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert in_float32(plain) is plain
