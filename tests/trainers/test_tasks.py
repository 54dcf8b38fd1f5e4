"""All tasks other than language models: steps, resumption, exports, and errors for settings, requests and data."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.data.sources.test_speech_source import tone, write_wav
from tests.draws import first
from tests.trainers import task_runs
from tests.trainers.interrupted import check_resumed_run, stop_evaluation
from tf_sparse_attention.trainers.shared import evaluation, exporting, overrides, training, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

TASKS = ("image", "audio", "classify", "translate", "answer", "speech")


@pytest.mark.parametrize("name", TASKS)
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
    stop_evaluation(monkeypatch, chunk=1, call=2)
    with pytest.raises(KeyboardInterrupt):
        evaluation.evaluate(run, "test")
    found = evaluation.evaluate(run, "test")
    assert found.get("confusion") == expected.get("confusion")
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert not list(run.glob("*.partial.json"))


def nats_of(model, ids):
    """Return the nats of ids (T,) after the start, from the logits of the model."""
    logits = np.asarray(model(np.pad(ids[:-1], (1, 0))[None].astype("int32")), np.float64)[0]
    return (np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(len(ids)), ids]).sum()


def expected_outputs(name, task, model):
    """Return outputs of the model for the example of an export, and the text about them."""
    if name == "image":
        nats = nats_of(model, np.full(math.prod(task_runs.IMAGE), 129))
        return {"nats": nats}, f"a grey image has {nats / 12 / math.log(2):.4f} bits per dimension"
    if name == "audio":
        nats = nats_of(model, np.full(16, task.codec.encode(np.int16(0)))) * 50  # windows of 16 samples
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
    ("audio", "model", {"causal": False}, "`config.model.causal`"),
    ("audio", "data", {"path": None}, "`config.data.path`"),
    ("audio", "data", {"sample_rate": 16000}, "of 16000 samples per second. Received: 3 of 3 are invalid"),
    ("classify", "model", {"causal": True}, "`config.model.causal`"),
    ("classify", "model", {"num_layers": None}, "`config.model` must have num_layers, or start_from"),
    ("translate", "data", {"source_field": None}, "`config.data.source_field`"),
    ("translate", "model", {"cross_attention": []}, "`config.model.cross_attention`"),
    ("translate", "data", {"target_field": "fr"}, "one line of translate.jsonl must have the fields de, fr"),
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
    ("image", {"num_samples": 2, "settings": {"num_beams": 2}}, "`num_samples` must be 1 for beam search"),
    ("audio", {"complete": "test"}, "`complete`"),
    ("audio", {"prompt": b"hello"}, "`prompt` must be a WAV file"),
    ("audio", {"length": 0}, "`length`"),
    ("audio", {"num_samples": 0}, "`num_samples`"),
    ("audio", {"num_samples": 2, "settings": {"num_beams": 2}}, "`num_samples`"),
    ("audio", {"path": "samples.png"}, "`output` must be a file NAME.wav"),
    ("audio", {"path": "no/such.wav"}, "`output` must be a file in an existing folder"),
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
        write_wav(folder / f"{number}.wav", tone(300 + number))
        (folder / f"{number}.txt").write_text("a b", encoding="utf-8")
    return paths, {"path": str(folder)}


def test_data_that_do_not_fit_the_model_of_a_run_are_errors(task_run, make_task_config, tmp_path, subtests):
    for name, resumed, evaluated in [
        ("image", "codec of .*'blocks'", r"must have images of shape \(2, 2, 3\), as the model requires\. Received"),
        (
            "audio",
            "codec of .*16000",
            r"must have recordings of 8000 samples per second, as the .*Received: audio with 16",
        ),
        (
            "classify",
            r"labels of .*\['BEAST', 'FR",
            r"among the training labels: 'beast', 'fruit', 'tool'\. Received: '",
        ),
        ("speech", "mean and std of", r"`config\.data` must have the unit .* phone\."),
    ]:
        config, changes = make_task_config(name), overrides.overridable_settings()
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
