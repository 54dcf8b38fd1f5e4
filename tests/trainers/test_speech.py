"""Task "speech": training, bit-exact resumption, scores, transcripts, export, and invalid settings."""

import json

import numpy as np
import pytest

from tests.data.sources.test_speech_source import tone, write_wav
from tests.trainers.eager import EAGER
from tests.trainers.interrupted import check_resumed_run
from tf_sparse_attention.trainers.configs import speech
from tf_sparse_attention.trainers.shared import (
    evaluation,
    exporting,
    illustrations,
    overrides,
    training,
    workdir,
)
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks import speech as speech_task
from tf_sparse_attention.trainers.tasks.task import Request

pytestmark = EAGER

KINDS = "abcd"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Generated recordings: each phone is a band of features for some frames. One is empty, one is too long."""
    rng = np.random.default_rng(0)
    frames, phones = [], []
    for number in range(24):
        labels = rng.integers(0, 4, 0 if number == 3 else rng.integers(3, 9))
        runs = [np.eye(4)[label].repeat(2)[None].repeat(rng.integers(16, 24), axis=0) for label in labels]
        if number == 5:
            runs.append(np.zeros((900, 8)))
        frames.append(np.concatenate([*runs, np.zeros((20, 8))]) + rng.normal(size=(1, 8)) * 0.1)
        phones.append(labels)
    path = tmp_path_factory.mktemp("speech") / "speech.npz"
    np.savez(
        path,
        features=np.concatenate(frames).astype("float32"),
        offsets=np.cumsum([0, *map(len, frames)]),
        phonemes=np.concatenate(phones),
        phoneme_offsets=np.cumsum([0, *map(len, phones)]),
        vocabulary=np.array(list(KINDS)),
        split=np.array(["train"] * 16 + ["validation"] * 4 + ["test"] * 4),
    )
    return path


@pytest.fixture(scope="module")
def make_config(path, data_dir):
    def make(num_steps=2):
        config = speech.get_config("tiny")
        config.data.update(path=str(path), data_dir=str(data_dir), sequence_length=399, batch_size=4)
        config.train.update(num_steps=num_steps, log_every=1, evaluate_every=num_steps, checkpoint_every=2)
        config.train.update(deterministic=False, jit_compile=False, illustrate=True, num_beams=2)
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, training.train(make_config(), folder)


def test_an_evaluation_scores_every_recording_once_and_by_beams(finished, path):
    task = registry.load_task(finished[0])
    rows = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]
    assert row["validation/loss"] > 0 and row["validation/phone_error_rate"] > 0
    scores = evaluation.evaluate(finished[0], "test")
    arrays = np.load(path)
    labels = np.diff(arrays["phoneme_offsets"])[20:].sum()
    assert (scores["recordings"], scores["labels"]) == (4, labels) and not any(scores["left_out"].values())
    assert scores["loss"] == scores["nats"] / labels and scores["beams"]["phone_error_rate"] > 0
    assert json.loads((finished[0] / "evaluation-test.json").read_text()) == scores
    assert not list(finished[0].glob("*.partial.json"))
    assert "2 beams" in evaluation.as_text(scores)
    changes = overrides.overridable_settings()
    changes.train.evaluation_attention = "full"  # has more heads
    with pytest.raises(ValueError, match=r"`attention` must have the weights of the model"):
        evaluation.evaluate(finished[0], "test", changes)
    counts = task.open_buckets("train").left_out
    assert (counts["empty"], counts["too_long"]) == (1, 1)
    assert "left out: 1 empty, 1 too long" in evaluation.as_text({**scores, "left_out": counts})


def test_a_run_folder_keeps_labels_and_normalization(finished, make_config, tmp_path, path):
    state = json.loads((finished[0] / "task.json").read_text())
    assert state["labels"] == list(KINDS) and len(state["mean"]) == 8
    arrays = dict(np.load(path))
    arrays["features"] = arrays["features"] + 1
    other = tmp_path / "speech.npz"
    np.savez(other, **arrays)
    task = registry.make_task(make_config())
    workdir.check_state(finished[0], task.get_state())
    config = make_config()
    config.data.path = str(other)
    with pytest.raises(ValueError, match=r"`config\.data` must match the mean and std of the checkpoint in"):
        workdir.check_state(finished[0], registry.make_task(config).get_state())


@pytest.mark.full
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(make_config, tmp_path, monkeypatch):
    config = make_config()
    config.data.sequence_length = 400  # batches of two lengths
    check_resumed_run(config, tmp_path, monkeypatch)


@pytest.mark.full
def test_a_killed_evaluation_resumes(finished, monkeypatch):
    calls = []
    expected = evaluation.evaluate(finished[0], "train")
    functions = {evaluation.Scorer: "predict", speech_task: "ctc_beam_search"}

    def stopping(function, limit):
        def call(*arguments, **options):
            calls.append(function)
            if calls.count(function) == limit:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(evaluation, "BATCHES_PER_SAVE", 2)
    for (owner, name), limit in zip(functions.items(), (2, 7), strict=True):
        monkeypatch.setattr(owner, name, stopping(getattr(owner, name), limit))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            evaluation.evaluate(finished[0], "train")
    found = evaluation.evaluate(finished[0], "train")
    # Beam search decodes 14 recordings. Recordings of the interrupted second batch are decoded again.
    assert calls.count(calls[0]) == 3 and calls.count(calls[-1]) == 7 + 14 - 4
    for name in ("recordings", "labels", "left_out", "phone_error_rate", "beams"):
        assert found[name] == expected[name]
    assert found["nats"] == pytest.approx(expected["nats"], rel=1e-6)
    assert not list(finished[0].glob("*.partial.json"))


def test_generation_prints_and_writes_transcripts(finished):
    task = registry.load_task(finished[0])
    model = workdir.load_model(finished[0])
    made = task.generate(model, Request(prompt=b"validation", num_samples=2, path=finished[0]))
    rows = [json.loads(line) for line in (finished[0] / "samples.jsonl").read_text().splitlines()]
    assert rows == made.samples and [row["name"] for row in rows] == ["validation[0]", "validation[1]"]
    assert made.path == finished[0] / "samples.jsonl"
    assert all(f"reference   {row['reference']}\ntext        {row['text']}" in made.text for row in rows)
    (row,) = task.generate(model, Request(prompt=b"validation", settings={"num_beams": 2})).samples
    (ids,) = model.transcribe([task.open_store("validation").features(0)], 2)
    assert row["text"] == task.as_text(ids)
    for request, name in ((Request(settings={"temperature": 1.0}), "temperature"), (Request(length=5), "length")):
        with pytest.raises(ValueError, match=rf"`num_beams`.*Received: {name}\."):
            task.generate(model, request)


def test_an_interruption_keeps_the_transcripts_so_far(finished, tmp_path, monkeypatch):
    task = registry.load_task(finished[0])

    def transcripts(*arguments):
        yield from [{"name": "one", "text": "a", "num_tokens": 1}][: len(left)]
        raise KeyboardInterrupt

    monkeypatch.setattr(task, "transcripts", transcripts)
    left = [1]
    assert task.generate(None, Request(path=tmp_path / "rows.jsonl")).samples[0]["name"] == "one"
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    left = []
    with pytest.raises(KeyboardInterrupt):
        task.generate(None, Request(path=tmp_path / "rows.jsonl"))


@pytest.mark.full
def test_the_exported_model_transcribes_without_the_library(finished):
    task = registry.load_task(finished[0])
    result = exporting.export(finished[0], jit_compile=False)
    features = np.tile(np.array(task.get_state()["mean"], "float32"), (100, 1))
    (ids,) = workdir.load_model(finished[0]).transcribe([features])
    assert result["text"] == task.as_text(ids)
    trial = f"100 frames of mean features are transcribed as {result['text']!r}"
    assert result["test_result"] == f"loaded in a process without the library, {trial}"


def test_transcripts_of_a_split_have_references_and_those_of_a_file_none(finished, path):
    task, model = registry.load_task(finished[0]), workdir.load_model(finished[0])
    two = list(task.transcripts(model, "test", 2))
    arrays = np.load(path)
    first = arrays["phonemes"][arrays["phoneme_offsets"][20] : arrays["phoneme_offsets"][21]]
    assert [row["name"] for row in two] == ["test[0]", "test[1]"]
    assert two[0]["reference"] == " ".join(KINDS[label] for label in first)
    of_file = list(task.transcripts(model, str(path), 1))
    assert len(of_file) == 24 and "reference" not in of_file[0]
    (ids,) = model.transcribe([arrays["features"][: arrays["offsets"][1]]])
    assert of_file[0]["text"] == task.as_text(ids)


def test_recordings_with_labels_of_another_unit_and_prompts_that_are_no_recordings_are_errors(
    finished, tmp_path, subtests
):
    for number in range(3):
        write_wav(tmp_path / f"{number}.wav", tone(300 + number))
        (tmp_path / f"{number}.txt").write_text("a b", encoding="utf-8")
    changes = overrides.overridable_settings()
    changes.data.path = str(tmp_path)
    with pytest.raises(ValueError, match=r"`config\.data` must have the unit .* phone\."):
        evaluation.evaluate(finished[0], "train", changes)
    task = registry.load_task(finished[0])
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    np.savez(tmp_path / "c.npz", features=np.zeros((5, 8)), offsets=np.array([0, 7, 5], "uint64"))
    (tmp_path / "d.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-30])
    for what, message in [
        (str(tmp_path / "b.wav"), "`prompt` must be an existing file"),
        (str(tmp_path / "0.wav"), "`prompt` must be a file with features, .*0.wav"),
        (str(tmp_path / "a.npz"), "`prompt` must hold the arrays features.*a.npz, without features"),
        (str(tmp_path / "c.npz"), "`prompt` must hold `offsets` that rise from 0 to 5"),
        (str(tmp_path / "d.npz"), "`prompt` must be a complete file .*d.npz"),
        ("RIFF\0" * 99, r"`prompt` must be the name of a file .*'RIFF.{,30}'\."),
        ("dev", "`split` must be one of train, validation, test in speech, .*split=dev"),
    ]:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            list(task.transcripts(None, what, 1))


def test_a_picture_has_features_above_posteriors():
    features = np.zeros((6, 2), "float32")
    features[:, 1] = 1
    picture = illustrations.posteriors(features, np.log(np.array([[1.0, 1e-9], [1e-9, 1.0]])))
    assert picture.shape == (2 * 3 + 3 + 2 * 3, 6, 3)
    assert picture[0, 0, 0] == 255 and picture[5, 0, 0] == 0  # the upper band is loud
    assert picture[-1, :, 0].tolist() == [255, 255, 255, 0, 0, 0]  # the blank first


@pytest.mark.full
def test_a_folder_of_sounds_has_error_rates_of_characters_and_words(make_config, tmp_path):
    for split in ("train", "validation"):
        (tmp_path / "sounds" / split).mkdir(parents=True)
        for number in range(2):
            write_wav(tmp_path / "sounds" / split / f"{number}.wav", tone(300 + 300 * number, 0.6))
            (tmp_path / "sounds" / split / f"{number}.txt").write_text("a b" if number else "b a")
    config = make_config()
    config.data.update(path=str(tmp_path / "sounds"), sample_rate=8000, num_bands=20, batch_size=2)
    config.model.sinusoidal = True
    training.train(config, tmp_path / "run")
    task = registry.load_task(tmp_path / "run")
    scores = evaluation.evaluate(tmp_path / "run", "validation")
    assert {"character_error_rate", "word_error_rate"} <= set(scores) and scores["labels"] == 6
    assert "word error rate" in evaluation.as_text(scores)
    (row,) = task.transcripts(workdir.load_model(tmp_path / "run"), str(tmp_path / "sounds" / "train" / "0.wav"), 1)
    assert row["name"] == "0.wav" and set(row["text"]) <= set("ab ")


def test_settings_that_do_not_fit_speech_are_errors_that_name_them(make_config, tmp_path):
    for name, value, message in [
        ("attention", [], r"`config\.model\.attention`"),
        ("causal", True, r"`config\.model\.causal`"),
        ("subsampling", 3, "`factor`"),
    ]:
        config = make_config()
        config.model[name] = value
        with pytest.raises(ValueError, match=message):
            training.train(config, tmp_path / name)
