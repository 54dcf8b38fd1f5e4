"""Task "speech": scores, transcripts and pictures."""

import json
import types

import numpy as np
import pytest

from tests.data.builders import as_wav, tone
from tests.trainers.task_runs import PHONES, stop_evaluation
from tf_sparse_attention.trainers.configs import base
from tf_sparse_attention.trainers.shared import evaluation, illustrations, training, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks import speech as speech_task
from tf_sparse_attention.trainers.tasks.task import Request

TASK = "speech"


@pytest.fixture(scope="module")
def path(task):
    return task.config.data.path


def test_an_evaluation_scores_every_recording_once_and_by_beams(run, task, path):
    scores = evaluation.evaluate(run, "test")
    labels = np.diff(np.load(path)["phoneme_offsets"])[20:].sum()
    assert (scores["recordings"], scores["labels"]) == (4, labels) and not any(scores["left_out"].values())
    assert scores["loss"] == scores["nats"] / labels and scores["beams"]["phone_error_rate"] > 0
    assert json.loads((run / "evaluation-test.json").read_text()) == scores
    assert not list(run.glob("*.partial.json"))
    counts = task.open_buckets("train").left_out
    assert (counts["empty"], counts["too_long"]) == (1, 1)
    assert "left out: 1 empty, 1 too long" in evaluation.as_text({**scores, "left_out": counts})
    changes = base.overridable_settings()
    changes.train.evaluation_attention = "full"  # has more heads
    with pytest.raises(ValueError, match=r"`attention` must have the weights of the model"):
        evaluation.evaluate(run, "test", changes)
    state = task.get_state()
    assert state["labels"] == list(PHONES) and len(state["mean"]) == 8


@pytest.mark.full
def test_a_killed_evaluation_resumes(run, monkeypatch):
    expected, search, calls = evaluation.evaluate(run, "train"), speech_task.ctc_beam_search, []

    def stop_once(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return search(*arguments, **options)

    chunks = stop_evaluation(monkeypatch, chunk=2, call=2)
    monkeypatch.setattr(speech_task, "ctc_beam_search", stop_once)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            evaluation.evaluate(run, "train")
    found = evaluation.evaluate(run, "train")
    # Beam search decodes 14 recordings. Recordings of the interrupted second batch are decoded again.
    assert len(chunks) == 3 and len(calls) == 7 + 14 - 4
    for name in ("recordings", "labels", "left_out", "phone_error_rate", "beams"):
        assert found[name] == expected[name]
    assert found["nats"] == pytest.approx(expected["nats"], rel=1e-6)
    assert not list(run.glob("*.partial.json"))


def test_generation_prints_and_writes_transcripts(run, task, model):
    made = task.generate(model, Request(prompt=b"validation", num_samples=2, path=run))
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert rows == made.samples and [row["name"] for row in rows] == ["validation[0]", "validation[1]"]
    assert made.path == run / "samples.jsonl"
    assert all(f"reference   {row['reference']}\ntext        {row['text']}" in made.text for row in rows)
    (row,) = task.generate(model, Request(prompt=b"validation", settings={"num_beams": 2})).samples
    (ids,) = model.transcribe([task.open_store("validation").features(0)], 2)
    assert row["text"] == task.as_text(ids)


def test_an_interruption_keeps_the_transcripts_so_far(task, tmp_path, monkeypatch):
    def find_recordings(*arguments):
        yield from [{"name": "one", "features": None}][: len(left)]
        raise KeyboardInterrupt

    monkeypatch.setattr(speech_task, "find_recordings", find_recordings)
    model, left = types.SimpleNamespace(transcribe=lambda features, beams: [[1]]), [1]
    assert task.generate(model, Request(path=tmp_path / "rows.jsonl")).samples[0]["name"] == "one"
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    left = []
    with pytest.raises(KeyboardInterrupt):
        task.generate(model, Request(path=tmp_path / "rows.jsonl"))


def test_transcripts_of_a_split_have_references_and_those_of_a_file_none(task, model, path, tmp_path):
    two = task.generate(model, Request(b"test", num_samples=2)).samples
    arrays = np.load(path)
    first = arrays["phonemes"][arrays["phoneme_offsets"][20] : arrays["phoneme_offsets"][21]]
    assert [row["name"] for row in two] == ["test[0]", "test[1]"]
    assert two[0]["reference"] == " ".join(PHONES[label] for label in first)
    np.savez(tmp_path / "two.npz", features=arrays["features"][: arrays["offsets"][2]], offsets=arrays["offsets"][:3])
    of_file = task.generate(model, Request(str(tmp_path / "two.npz").encode())).samples
    assert len(of_file) == 2 and "reference" not in of_file[0]
    (ids,) = model.transcribe([arrays["features"][: arrays["offsets"][1]]])
    assert of_file[0]["text"] == task.as_text(ids)


def test_prompts_that_are_no_recordings_are_errors(task, tmp_path, subtests):
    (tmp_path / "0.wav").write_bytes(as_wav(tone(300)))
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
            list(speech_task.find_recordings(task, what, 1))


def test_a_picture_has_features_above_posteriors():
    features = np.zeros((6, 2), "float32")
    features[:, 1] = 1
    picture = illustrations.posteriors(features, np.log(np.array([[1.0, 1e-9], [1e-9, 1.0]])))
    assert picture.shape == (2 * 3 + 3 + 2 * 3, 6, 3)
    assert picture[0, 0, 0] == 255 and picture[5, 0, 0] == 0  # the upper band is loud
    assert picture[-1, :, 0].tolist() == [255, 255, 255, 0, 0, 0]  # the blank first


@pytest.mark.full
def test_a_folder_of_sounds_has_error_rates_of_characters_and_words(make_task_config, tmp_path):
    for split in ("train", "validation"):
        (tmp_path / "sounds" / split).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "sounds" / split / f"{number}.wav").write_bytes(as_wav(tone(300 + 300 * number, 0.6)))
            (tmp_path / "sounds" / split / f"{number}.txt").write_text("a b" if number else "b a")
    config = make_task_config("speech")
    config.data.update(path=str(tmp_path / "sounds"), sample_rate=8000, num_bands=20, batch_size=2)
    config.model.sinusoidal = True
    training.train(config, tmp_path / "run")
    task = registry.load_task(tmp_path / "run")
    scores = evaluation.evaluate(tmp_path / "run", "validation")
    assert {"character_error_rate", "word_error_rate"} <= set(scores) and scores["labels"] == 6
    assert "word error rate" in evaluation.as_text(scores)
    prompt = str(tmp_path / "sounds" / "train" / "0.wav").encode()
    (row,) = task.generate(workdir.load_model(tmp_path / "run"), Request(prompt)).samples
    assert row["name"] == "0.wav" and set(row["text"]) <= set("ab ")
