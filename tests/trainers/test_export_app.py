"""Export of a run, and the test of the exported model."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.export.portable_cases import RunLiteRT
from tests.trainers.test_generate import texts_of
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.shared import exporting, sample_sources, sampling, workdir
from tf_sparse_attention.trainers.shared.exporting import in_float32, run_without_library
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.language_model import LINE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(untrained):
    return untrained


@pytest.fixture(scope="module")
def exported(untrained):
    """Result of the export of a run, without XLA compilation, which takes longer than a few tokens."""
    return exporting.export(untrained, jit_compile=False)


def test_a_run_is_exported_and_a_line_scored_in_another_process(run, exported):
    result = exported
    ids = workdir.load_tokenizer(run).tokenize(LINE)
    logits = workdir.load_model(run)(np.array([[0, *ids[:-1]]], "int32"))[0]
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits).numpy().sum()
    assert result["path"] == str(run / "saved_model")
    assert result["num_bytes"] == len(b"def main():")
    np.testing.assert_allclose(result["nats"], nats, rtol=1e-5)
    np.testing.assert_allclose(result["bits_per_byte"], nats / math.log(2) / 11, rtol=1e-5)
    # `score` has windows of the training length.
    assert "consecutive windows of 64 tokens." in (run / "saved_model" / "README.md").read_text(encoding="utf-8")


def test_a_saved_model_gives_the_samples_of_its_run(run, exported):
    source = registry.load_task(run).make_sample_source(workdir.load_model(run))
    source.model._generator = Generator(source.model, run_eagerly=True)
    wanted = sampling.generate(source, "é".encode(), num_samples=2, length=5, seed=-3)
    served = sample_sources.SavedModelSource(exported["path"])
    found = sampling.generate(served, "é".encode(), num_samples=2, length=5, seed=-3, temperature=0.7, top_p=0.9)
    assert texts_of(found) == texts_of(wanted)
    assert [sample["log_prob"] for sample in found] == pytest.approx([s["log_prob"] for s in wanted], abs=2e-3)
    with pytest.raises(ValueError, match=r"only has the settings temperature and top_p\. Received: top_k\."):
        sampling.generate(served, b"a", top_k=3)


@pytest.mark.full
def test_the_program_exports_with_tensorflow_whatever_the_backend(run):
    result = subprocess.run(
        [sys.executable, "-m", "tf_sparse_attention.trainers.export", f"--workdir={run}", "--nojit_compile"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    test_result = run_without_library(run / "saved_model", "score", {"text": [LINE]})
    assert result.stdout == (
        f"loaded in a process without the library, 'def main():' has {test_result['bits_per_byte']:.4f} bits per byte "
        f"({test_result['nats']:.2f} nats, 11 bytes)\n"
    )


def test_a_saved_model_that_needs_the_library_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RUN_WITHOUT_LIBRARY", "raise ValueError('no such signature')")
    with pytest.raises(RuntimeError, match=r"(?s)The SavedModel .* does not work without the library:.*no such"):
        run_without_library(tmp_path, "score", {"text": ["a line"]})


@pytest.mark.full
def test_a_litert_file_has_rows_as_long_as_in_training(run):
    test_result = exporting.export(run, "litert", ["score"])["test_result"]
    assert test_result == "outputs for random rows of length 64 match the model"
    ids = np.random.default_rng(0).integers(1, 257, size=(1, 64), dtype="int32")
    logits = workdir.load_model(run)(np.pad(ids[:, :-1], [(0, 0), (1, 0)]))
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
    np.testing.assert_allclose(RunLiteRT(run / "model.tflite")("score", {"token_ids": ids})["nats"], nats, atol=1e-4)


def make_model(dtype=None, **options):
    heads = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
    return LanguageModel(Backbone(10, 1, 8, [heads], dtype=dtype, **options), dtype=dtype)


def test_arguments_of_another_format_and_models_of_masked_tokens_are_errors(run, monkeypatch):
    with pytest.raises(ValueError, match="`--weight_dtype`"):
        exporting.export(run, "onnx", weight_dtype="int8")
    with pytest.raises(ValueError, match="`--signatures`"):
        exporting.export(run, signatures=["score"])
    monkeypatch.setattr(workdir, "load_model", lambda folder: make_model(causal=False))
    with pytest.raises(ValueError, match=r"masked language model, .*`task=classify`"):
        exporting.export(run, "litert")


def test_files_of_a_run_in_half_precision_are_of_the_same_weights_in_single_precision():
    half, plain = make_model(dtype="mixed_bfloat16"), make_model()
    found = in_float32(half)
    assert {layer.compute_dtype for layer in found._flatten_layers()} == {"float32"}
    for one, other in zip(found.get_weights(), half.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert in_float32(plain) is plain
