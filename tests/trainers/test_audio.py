"""Task "audio": training, bit-exact resumption, scores, samples, TensorBoard, export, and invalid settings."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.trainers.eager import EAGER
from tests.trainers.interrupted import check_resumed_run
from tf_sparse_attention.data.sources.wav_file import decode_wav
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models.generator import Generator
from tf_sparse_attention.trainers.configs import audio as audio_config
from tf_sparse_attention.trainers.shared import evaluation, exporting, training, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.audio import draw_audio, write_wav
from tf_sparse_attention.trainers.tasks.task import Request

pytestmark = EAGER

RATE = 8000


@pytest.fixture(scope="module")
def recordings():
    random = np.random.default_rng(0)
    return [random.integers(-9000, 9000, size=length).astype(np.int16) for length in (30, 17, 40, 23, 9)]


@pytest.fixture(scope="module")
def make_config(recordings, tmp_path_factory, data_dir):
    path = tmp_path_factory.mktemp("arrays") / "sounds.npz"
    offsets = np.cumsum([0, *map(len, recordings)])
    is_test = np.array([False, False, False, True, True])
    np.savez(path, audio=np.concatenate(recordings), offsets=offsets, sample_rate=RATE, is_test=is_test)

    def make():
        config = audio_config.get_config("routed")
        config.data.update(path=str(path), data_dir=str(data_dir), sequence_length=16, batch_size=2)
        config.data.update(train_split="train", validation_split="test")
        config.model.update(num_layers=1, num_local_layers=0, hidden_dim=16, intermediate_dim=16, grid=[6, 8])
        config.model.attention = [{**config.model.attention[0], "num_heads": 2, "key_dim": 8, "window": 8}]
        config.train.update(num_steps=2, log_every=1, evaluate_every=2, checkpoint_every=2, illustrate=False)
        config.train.update(deterministic=False, jit_compile=False)
        config.generate.length = 6
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A run directory. Tests may add scores and samples."""
    folder = tmp_path_factory.mktemp("finished")
    training.train(make_config(), folder)
    return folder


@pytest.fixture
def task(finished):
    return registry.load_task(finished)


@pytest.fixture
def model(finished):
    """The model of the run. It generates without compilation, which takes longer than a few samples."""
    model = workdir.load_model(finished)
    model._generator = Generator(model, run_eagerly=True)
    return model


def nats_by_hand(folder, task, split):
    """Return -log p of each sample, from the softmax of the logits of each segment of a recording, in NumPy."""
    store, model, nats = task.open_split(split), workdir.load_model(folder), []
    stream = np.asarray(store.tokens, int)
    for begin in range(0, len(stream), 16):
        window = stream[begin : begin + 16]
        ends = [*np.flatnonzero(window == 0), len(window)]
        for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
            if last > first:
                ids = np.zeros((1, 16), "int32")  # at its position in the window, for the position embedding
                ids[0, first + 1 : last] = window[first : last - 1]
                segments = np.zeros((1, 16), "int32")
                segments[0, first:last] = 1
                logits = np.asarray(model({"token_ids": ids, "segment_ids": segments}), np.float64)[0, first:last]
                log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
                nats += [-row[target] for row, target in zip(log_probs, window[first:last], strict=True)]
    return np.array(nats)


def test_every_sample_is_scored_once_given_the_earlier_ones(finished, task):
    scores = evaluation.evaluate(finished, "test")
    nats = nats_by_hand(finished, task, "test")
    assert (scores["recordings"], scores["bytes"]) == (2, 23 + 9) == (2, nats.size)
    assert scores["nats"] == pytest.approx(nats.sum(), rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(nats.mean() / math.log(2), rel=1e-5)
    assert json.loads((finished / "evaluation-test.json").read_text()) == scores
    assert f"bits per byte         {scores['bits_per_byte']:.4f}" in evaluation.as_text(scores)
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]  # of the same split
    assert row["validation/loss"] == pytest.approx(nats.mean(), rel=1e-5)
    assert row["validation/bits_per_byte"] == pytest.approx(scores["bits_per_byte"], rel=1e-5)


@pytest.mark.full
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(make_config, tmp_path, monkeypatch):
    config = make_config()
    check_resumed_run(config, tmp_path, monkeypatch)


def test_samples_are_written_as_the_model_generates_them(task, model, tmp_path):
    path = tmp_path / "drawn.wav"
    made = task.generate(model, Request(num_samples=2, seed=5, path=path))
    rows = model.generator.generate([[]] * 2, 6, Sampling(temperature=1.0, top_p=1.0), [5, 6], None, 257)
    for number, row in enumerate(rows):
        found = decode_wav((tmp_path / f"drawn_{number}.wav").read_bytes())
        np.testing.assert_array_equal(found.samples, task.codec.decode(row.token_ids))
        assert found.sample_rate == RATE and len(found.samples) == 6
        assert made.samples[number]["bits_per_byte"] == pytest.approx(-row.log_probs.mean() / math.log(2), rel=1e-5)
    assert made.path == tmp_path / "drawn_0.wav" and made.text.startswith("seed 5: ") and "drawn_1.wav" in made.text


def test_a_continuation_begins_with_its_prompt(task, model, recordings, tmp_path):
    write_wav(tmp_path / "start.wav", recordings[4], RATE)
    request = Request(prompt=(tmp_path / "start.wav").read_bytes(), length=3, path=tmp_path / "drawn.wav")
    (sample,) = task.generate(model, request).samples
    assert sample["num_tokens"] == 3
    found = decode_wav((tmp_path / "drawn.wav").read_bytes()).samples
    assert len(found) == 9 + 3
    np.testing.assert_array_equal(found[:9], task.codec.decode(task.codec.encode(recordings[4])))


def make_silence(rate, tmp_path):
    """Return the content of a WAV file."""
    write_wav(tmp_path / "silence.wav", np.zeros(4, np.int16), rate)
    return (tmp_path / "silence.wav").read_bytes()


def test_requests_that_do_not_fit_sound_are_errors_that_name_them(task, model, tmp_path, subtests):
    other_rate = make_silence(11025, tmp_path)
    for request, message in [
        ({"complete": "test"}, "`complete`"),
        ({"prompt": b"hello"}, "`prompt` must be a WAV file"),
        ({"prompt": other_rate}, "`prompt` must have 8000 samples per second, .*Received: 11025"),
        ({"length": 0}, "`length`"),
        ({"num_samples": 0}, "`num_samples`"),
        ({"num_samples": 2, "settings": {"num_beams": 2}}, "`num_samples`"),
        ({"path": "samples.png"}, "`output` must be a file NAME.wav"),
        ({"path": "no/such.wav"}, "`output` must be a file in an existing folder"),
    ]:
        with subtests.test(str(request)[:40]), pytest.raises(ValueError, match=message):
            task.generate(model, Request(**request))


def test_a_picture_has_a_waveform_and_a_spectrogram():
    pytest.importorskip("matplotlib")
    tone = (8000 * np.sin(2 * np.pi * 1000 * np.arange(4000) / RATE)).astype(np.int16)
    picture = draw_audio(tone, RATE)
    assert picture.shape == (400, 800, 4) and picture.dtype == np.uint8
    halves = picture[:200], picture[200:]
    silent = draw_audio(np.zeros(5, np.int16), RATE)  # shorter than a transform
    assert all((half != other).any() for half, other in zip(halves, (silent[:200], silent[200:]), strict=True))


def test_tensorboard_shows_and_plays_a_recording_and_a_sample(task, model):
    store, shown = task.open_split("test"), task.validation(task, model, "test").examples()
    assert set(shown.sounds) == {"recording", "sample"} and set(shown.pictures) <= {"recording", "sample"}
    samples, rate = shown.sounds["recording"]
    np.testing.assert_array_equal(samples, task.codec.decode(store.document(0)[:-1]))
    assert rate == RATE and len(shown.sounds["sample"][0]) == 6


def test_settings_that_do_not_fit_sound_are_errors_that_name_them(make_config, tmp_path, subtests):
    for section, settings, message in [
        ("model", {"causal": False}, "`config.model.causal`"),
        ("data", {"path": None}, "`config.data.path`"),
        ("data", {"sample_rate": 16000}, "of 16000 samples per second. Received: 3 of 3 are invalid"),
    ]:
        config = make_config()
        config[section].update(settings)
        with subtests.test(str(settings)), pytest.raises(ValueError, match=message):
            training.train(config, tmp_path)


def test_recordings_of_another_rate_raise_an_error(finished, make_config):
    config = make_config()
    workdir.check_state(finished, registry.make_task(config).get_state())
    config.data.sample_rate = 16000
    with pytest.raises(ValueError, match=r"`config\.data` must match the codec of the checkpoint .*16000"):
        workdir.check_state(finished, registry.make_task(config).get_state())
    task = registry.find_task_class("audio")(config, {"codec": tsa.data.AudioCodec(RATE).get_config()})
    with pytest.raises(
        ValueError, match=r"must have recordings of 8000 samples per second, as the .*Received: sounds with 16"
    ):
        task.open_split("test")


@pytest.mark.full
def test_the_exported_model_scores_silence_without_the_library(finished, task, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "copy")
    result = exporting.export(folder, jit_compile=False)
    assert Path(result["path"]) == folder / "saved_model"
    trial = f"silence of 800 samples has {result['bits_per_byte']:.4f} bits per byte"
    assert result["test_result"] == f"loaded in a process without the library, {trial}"
    ids, model, nats = np.full((1, 800), task.codec.encode(np.int16(0)), np.int32), workdir.load_model(folder), 0.0
    for begin in range(0, 800, 16):
        targets = ids[0, begin : begin + 16]
        logits = np.asarray(model(np.array([[0, *targets[:-1]]], np.int32)), np.float64)[0]
        nats += (np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(16), targets]).sum()
    assert result["nats"] == pytest.approx(nats, rel=1e-5)
