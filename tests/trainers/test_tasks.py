"""All tasks: steps, resumption, exports, and errors for settings, requests and data."""

import json
import math
import os
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.contracts import nats_of
from tests.data.builders import as_wav, tone
from tests.draws import first
from tests.export.portable_cases import RunLiteRT
from tests.trainers import task_runs
from tests.trainers.task_runs import check_resumed_run, stop_evaluation
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, exporting, training, workdir
from tf_sparse_attention.trainers.shared.exporting import in_float32, run_without_library
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.language_model import LINE
from tf_sparse_attention.trainers.tasks.task import Request

TASKS = ("speech", "image", "audio", "classify", "translate", "answer")


@pytest.mark.parametrize("name", first(TASKS, 2))
def test_steps_of_a_task_lower_its_loss(make_task_config, name):
    task = registry.make_task(make_task_config(name))
    model, batch = task.make_model(), task.training_batches()[0]
    model.compile(keras.optimizers.Adam(0.01), **task.compile_arguments(), run_eagerly=True)
    losses = []
    for _ in range(2):
        model.reset_metrics()
        losses.append(model.train_on_batch(*batch, return_dict=True)["loss"])
    assert 0 < losses[1] < losses[0]


@pytest.mark.full
@pytest.mark.parametrize("name", TASKS)
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(
    make_task_config, name, tmp_path, monkeypatch
):
    config = make_task_config(name, {"image": "local_2d", "classify": "improved", "translate": "mixed"}.get(name))
    if name == "image":
        config.data.update(use_flips=True, image_order="blocks", image_block=(1, 1))
        config.model.attention = [{**config.model.attention[0], "order": "blocks"}]
        config.model.grid = [2, 2, 1, 1, 3]
    elif name == "translate":
        config.data.update(sequence_length=512, batch_size=1)  # batches of several lengths
    elif name == "speech":
        config.data.sequence_length = 400
    config.train.evaluate_every = 0 if name == "translate" else 7
    folder = check_resumed_run(config, tmp_path, monkeypatch)
    rows = [json.loads(line) for line in (folder / workdir.METRICS).read_text().splitlines()]
    if config.train.evaluate_every:
        scores = evaluation.evaluate(folder, config.data.validation_split)
        assert rows[-1]["validation/loss"] == pytest.approx(scores["loss"], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["classify", "image"])
def test_a_killed_evaluation_resumes(task_run, name, monkeypatch):
    run = task_run(name)
    expected = evaluation.evaluate(run, "test")
    predicted = stop_evaluation(monkeypatch, chunk=1, call=2)
    with pytest.raises(KeyboardInterrupt):
        evaluation.evaluate(run, "test")
    (partial,) = run.glob("*.partial.json")
    assert json.loads(partial.read_text())["batches"] == 1
    found = evaluation.evaluate(run, "test")
    assert len(predicted) > 2
    assert found.get("confusion") == expected.get("confusion")
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert not list(run.glob("*.partial.json"))


def expected_outputs(name, task, model):
    if name == "image":
        nats = nats_of(model, np.full((1, math.prod(task_runs.IMAGE)), 129)).sum()
        return {"nats": nats}, f"a grey image has {nats / 12 / math.log(2):.4f} bits per dimension"
    if name == "audio":
        silence = np.full((50, 16), task.codec.encode(np.int16(0)))  # in windows of 16 samples
        nats = nats_of(model, silence).sum()
        return {"nats": nats}, f"silence of 800 samples has {nats / 800 / math.log(2):.4f} bits per byte"
    if name == "classify":
        (sample,) = task.generate(model, Request(prompt=b"def main():")).samples
        probabilities = pytest.approx([sample["probabilities"][label] for label in task.labels], rel=1e-4)
        return {"label": sample["label"], "probabilities": probabilities}, f"is '{sample['label']}' with probability 0."
    if name == "speech":
        (ids,) = model.transcribe([np.tile(np.array(task.get_state()["mean"], "float32"), (100, 1))])
        return {"text": task.as_text(ids)}, f"100 frames of mean features are transcribed as {task.as_text(ids)!r}"
    source = np.append(task.tokenizer.tokenize("This is a line of text."), 1)
    (text,) = model.generate([source], 20, tokenizer=task.tokenizer)
    return {"text": text}, f"'This is a line of text.' becomes {text!r}"


@pytest.mark.full
@pytest.mark.parametrize("name", first(["classify", "image", "audio", "translate", "speech"], 1))
def test_the_exported_model_has_the_outputs_of_the_model_without_the_library(task_run, name):
    run = task_run(name)
    expected, text = expected_outputs(name, registry.load_task(run), task_runs.load_model(run))
    result = exporting.export(run, jit_compile=False)
    assert result["path"] == str(run / "saved_model")
    assert "loaded in a process without the library, " in result["test_result"] and text in result["test_result"]
    for output, value in expected.items():
        assert result[output] == (pytest.approx(value, rel=1e-5) if output == "nats" else value)


LARGE = {"image_shape": (4, 5, 3), "sequence_length": 60}
SETTINGS = [
    ("image", "model", {"causal": False}, "`config.model.causal`"),
    ("image", "data", {"path": None}, "`config.data.path`"),
    ("image", "data", {"sequence_length": 64}, "`config.data.sequence_length` must be 12"),
    ("image", "data", LARGE, "must hold only images of 4 x 5 pixels with 3 channels. Received: 12 of 12"),
    ("image", "data", {"image_order": "blocks"}, "`block_shape`"),
    ("image", "model", {"grid": [4, 3]}, "`config.model.grid` must be .2, 2, 3. "),
    ("audio", "data", {"sample_rate": 16000}, "of 16000 samples per second. Received: 3 of 3 are invalid"),
    ("classify", "model", {"causal": True}, "`config.model.causal`"),
    ("classify", "model", {"num_layers": None}, "`config.model` must have num_layers, or start_from"),
    ("translate", "data", {"source_field": None}, "`config.data.source_field`"),
    ("translate", "model", {"cross_attention": []}, "`config.model.cross_attention`"),
    ("translate", "data", {"target_field": "fr"}, "lines of JSON with the fields de, fr"),
    ("translate", None, {"task": "translation"}, "`config.task` must be one of language_model, .*task=translation"),
    ("answer", "data", {"target_field": None}, "`config.data.target_field`"),
    ("speech", "model", {"attention": []}, "`config.model.attention`"),
    ("speech", "model", {"causal": True}, "`config.model.causal`"),
    ("speech", "model", {"subsampling": 3}, "`factor`"),
]


def test_settings_that_do_not_fit_a_task_are_errors_that_name_them(make_task_config, tmp_path, subtests):
    for name, section, settings, message in SETTINGS:
        config = make_task_config(name)
        (config[section] if section else config).update(settings)
        with subtests.test(f"{name} {settings}"), pytest.raises(ValueError, match=message):
            training.train(config, tmp_path / name)


REQUESTS = [
    ("image", {"complete": "test", "prompt": b"a" * 9999}, r"`prompt`.*prompt=.{,40}\.$"),
    ("image", {"complete": "test", "length": 3}, "`length`"),
    ("image", {"complete": "test", "num_samples": 6}, "`num_samples` must be at most the 5 images"),
    ("image", {"complete": "test", "num_samples": 0}, "`num_samples`"),
    ("image", {"complete": "test", "path": "samples.jsonl"}, "`output` must be a file NAME.png"),
    ("image", {"path": "no/such.png"}, "`output` must be a file in an existing folder"),
    ("image", {"settings": {"length_penalty": 1.0}}, r"\(`num_beams`\) is required"),
    ("image", {"settings": {"num_beams": 2, "temperature": 0.5}}, r"\(`num_beams`\) must be unset for temperature"),
    ("image", {"settings": {"num_beams": 2, "no_repeat_ngram": 33}}, "`no_repeat_ngram`"),
    ("image", {"settings": {"top_p": 2.0}}, "`top_p`"),
    ("image", {"num_samples": 2, "settings": {"num_beams": 2}}, "`num_samples` must be 1 for beam search"),
    ("audio", {"complete": "test"}, "`complete`"),
    ("audio", {"prompt": b"hello"}, "`prompt` must be a WAV file"),
    ("audio", {"length": 0}, "`length`"),
    ("audio", {"path": "samples.png"}, "`output` must be a file NAME.wav"),
    ("classify", {}, "`prompt`"),
    ("classify", {"prompt": b"a", "num_samples": 2}, "`num_samples`"),
    ("classify", {"prompt": b"a", "length": 3}, "`length`"),
    ("classify", {"prompt": b"a", "complete": "test"}, "`complete`"),
    ("classify", {"prompt": b"a", "settings": {"top_p": 0.5}}, "`top_p`"),
    ("speech", {"length": 5}, r"`num_beams`.*Received: length\."),
    ("speech", {"settings": {"temperature": 1.0}}, r"`num_beams`.*Received: temperature\."),
    ("translate", {"complete": "test"}, r"`complete` must be unset for text: it is for images\. Received: test\."),
]


def test_requests_that_do_not_fit_a_task_are_errors_that_name_them(task_run, subtests):
    models = {name: workdir.load_model(task_run(name)) for name in {name for name, *_ in REQUESTS}}
    for name, request, message in REQUESTS:
        with subtests.test(f"{name} {str(request)[:40]}"), pytest.raises(ValueError, match=message):
            registry.load_task(task_run(name)).generate(models[name], Request(**request))


def write_other_data(name, path, folder):
    """Write data of a task that do not fit the model of a run. Return settings of a run and of an evaluation."""
    arrays = dict(np.load(path)) if path.suffix == ".npz" else {}
    other = folder / f"{name}{path.suffix}"
    paths = {"path": str(other), "data_dir": str(folder)}
    if name == "classify":
        lines = [{**line, "label": line["label"].upper()} for line in task_runs.draw_lines(name)]
        task_runs.write_lines(other, lines)
        return paths, paths
    if name == "image":
        np.savez(other, **{split: np.zeros((2, 2, 8, 3), np.uint8) for split in arrays})
        return {"image_order": "blocks", "image_block": (1, 1)}, paths
    if name == "audio":
        np.savez(other, **{**arrays, "sample_rate": 16000})
        return {"sample_rate": 16000}, paths
    np.savez(other, **{**arrays, "features": arrays["features"] + 1})
    for number in range(3):
        (folder / f"{number}.wav").write_bytes(as_wav(tone(300 + number)))
        (folder / f"{number}.txt").write_text("a b", encoding="utf-8")
    return paths, {"path": str(folder)}


def test_data_that_do_not_fit_the_model_of_a_run_are_errors(task_run, make_task_config, tmp_path, subtests):
    for name, resumed, evaluated in [
        ("image", "codec of .*'blocks'", r"must have images of shape \(2, 2, 3\), as the model requires\. Received"),
        ("audio", "codec of .*16000", r"recordings of 8000 samples per second, as the .*Received: audio with 16"),
        ("classify", r"labels of .*\['BEAST', 'FR", r"training labels: 'beast', 'fruit', 'tool'\. Received: '"),
        ("speech", "mean and std of", r"`config\.data` must have the unit .* phone\."),
    ]:
        config, changes = make_task_config(name), base.overridable_settings()
        workdir.check_state(task_run(name), registry.make_task(config).get_state())
        (tmp_path / name).mkdir()
        for settings, other in zip(
            (config, changes), write_other_data(name, Path(config.data.path), tmp_path / name), strict=True
        ):
            settings.data.update(other)
        with (
            subtests.test(name, stage="resumed"),
            pytest.raises(ValueError, match=rf"`config\.data` must .* {resumed}"),
        ):
            workdir.check_state(task_run(name), registry.make_task(config).get_state())
        with subtests.test(name, stage="evaluated"), pytest.raises(ValueError, match=evaluated):
            evaluation.evaluate(task_run(name), "test", changes)


@pytest.mark.full
def test_the_program_exports_a_run_with_tensorflow_whatever_the_backend_and_scores_a_line(run):
    on_jax = {**os.environ, "KERAS_BACKEND": "jax"}
    printed, _ = task_runs.run_program("export", f"--workdir={run}", "--nojit_compile", env=on_jax)
    nats = nats_of(workdir.load_model(run), task_runs.load_tokenizer(run).tokenize(LINE)[None]).sum()
    line = f"'def main():' has {nats / math.log(2) / 11:.4f} bits per byte ({nats:.2f} nats, 11 bytes)"
    assert printed == f"loaded in a process without the library, {line}\n"
    # `score` has windows of the training length.
    assert "consecutive windows of 64 tokens." in (run / "saved_model" / "README.md").read_text(encoding="utf-8")


def test_a_saved_model_that_needs_the_library_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "RUN_WITHOUT_LIBRARY", "raise ValueError('no such signature')")
    with pytest.raises(RuntimeError, match=r"(?s)The SavedModel .* does not work without the library:.*no such"):
        run_without_library(tmp_path, "score", {"text": ["a line"]})


@pytest.mark.full
def test_a_litert_file_has_rows_as_long_as_in_training(run):
    test_result = exporting.export(run, "litert", ["score"])["test_result"]
    assert test_result == "outputs for random rows of length 64 match the model"
    ids = np.random.default_rng(0).integers(1, 257, size=(1, 64), dtype="int32")
    found = RunLiteRT(run / "model.tflite")("score", {"token_ids": ids})["nats"]
    np.testing.assert_allclose(found, nats_of(workdir.load_model(run), ids), atol=1e-4)


def make_language_model(dtype=None, **options):
    heads = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
    return LanguageModel(Backbone(10, 1, 8, [heads], dtype=dtype, **options), dtype=dtype)


def test_arguments_of_another_format_and_models_of_masked_tokens_are_errors(run, monkeypatch):
    with pytest.raises(ValueError, match="`--weight_dtype`"):
        exporting.export(run, "onnx", weight_dtype="int8")
    with pytest.raises(ValueError, match="`--signatures`"):
        exporting.export(run, signatures=["score"])
    monkeypatch.setattr(workdir, "load_model", lambda folder: make_language_model(causal=False))
    with pytest.raises(ValueError, match=r"masked language model, .*`task=classify`"):
        exporting.export(run, "litert")


def test_files_of_a_run_in_half_precision_are_of_the_same_weights_in_single_precision():
    half, plain = make_language_model(dtype="mixed_bfloat16"), make_language_model()
    found = in_float32(half)
    assert {layer.compute_dtype for layer in found._flatten_layers()} == {"float32"}
    for one, other in zip(found.get_weights(), half.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert in_float32(plain) is plain
