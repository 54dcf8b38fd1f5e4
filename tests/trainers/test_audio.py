"""Task "audio": scores, samples and TensorBoard."""

import math

import numpy as np
import pytest

from tests.trainers import task_runs
from tests.trainers.task_runs import RATE
from tf_sparse_attention.data.sources.media_files import decode_wav
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.trainers.shared import evaluation
from tf_sparse_attention.trainers.tasks.audio import write_wav
from tf_sparse_attention.trainers.tasks.task import Request

TASK = "audio"


def nats_by_hand(model, stream):
    """Return -log p of each sample, from the softmax of the logits of each segment of a recording, in NumPy."""
    nats = []
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


def test_every_sample_is_scored_once_given_the_earlier_ones(run, task, model):
    scores = evaluation.evaluate(run, "test")
    nats = nats_by_hand(model, np.asarray(task.open_split("test").tokens, int))
    assert (scores["recordings"], scores["bytes"]) == (2, 23 + 9) == (2, nats.size)
    assert scores["nats"] == pytest.approx(nats.sum(), rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(nats.mean() / math.log(2), rel=1e-5)
    assert f"bits per byte         {scores['bits_per_byte']:.4f}" in evaluation.as_text(scores)


@pytest.mark.full
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
    (sample,) = task.generate(model, Request(settings={"num_beams": 2})).samples
    assert len(sample["token_ids"]) == 6 and "temperature" not in sample


def test_a_continuation_begins_with_its_prompt_which_has_the_rate_of_the_model(task, model, tmp_path):
    prompt = task_runs.draw_recordings()[4]
    write_wav(tmp_path / "start.wav", prompt, RATE)
    request = Request(prompt=(tmp_path / "start.wav").read_bytes(), length=3, path=tmp_path / "drawn.wav")
    (sample,) = task.generate(model, request).samples
    assert sample["num_tokens"] == 3
    found = decode_wav((tmp_path / "drawn.wav").read_bytes()).samples
    assert len(found) == 9 + 3
    np.testing.assert_array_equal(found[:9], task.codec.decode(task.codec.encode(prompt)))
    write_wav(tmp_path / "start.wav", prompt, 11025)
    with pytest.raises(ValueError, match=r"`prompt` must have 8000 samples per second, .*Received: 11025"):
        task.generate(model, Request(prompt=(tmp_path / "start.wav").read_bytes()))


@pytest.mark.full
def test_tensorboard_shows_and_plays_a_recording_and_a_sample(task, model):
    store, shown = task.open_split("test"), task.validation(task, model, "test").examples()
    assert set(shown.sounds) == {"recording", "sample"} and set(shown.pictures) <= {"recording", "sample"}
    samples, rate = shown.sounds["recording"]
    np.testing.assert_array_equal(samples, task.codec.decode(store.document(0)[:-1]))
    assert rate == RATE and len(shown.sounds["sample"][0]) == 6
