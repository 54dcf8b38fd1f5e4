"""Task "image": scores, drawn and completed images, and TensorBoard."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import nats_of
from tests.export.portable_cases import RunONNX, needs
from tests.trainers import task_runs
from tf_sparse_attention.trainers.shared import evaluation, exporting, sampling, workdir
from tf_sparse_attention.trainers.tasks import byte_task, image, registry
from tf_sparse_attention.trainers.tasks.task import Request

TASK = "image"
TEST = task_runs.draw_images()["test"]
IDS = TEST.reshape(len(TEST), -1).astype("int32") + 1


def test_every_byte_is_scored_once_given_those_before_it(run, model):
    scores = evaluation.evaluate(run, "test")
    nats = nats_of(model, IDS)
    assert (scores["images"], scores["bytes"]) == (5, nats.size)
    assert scores["nats"] == pytest.approx(nats.sum(), rel=1e-5)
    assert scores["bits_per_dim"] == pytest.approx(nats.mean() / math.log(2), rel=1e-5)
    assert f"bits per dimension    {scores['bits_per_dim']:.4f}" in evaluation.as_text(scores)
    assert "not_causal" not in scores


@pytest.mark.full
def test_tensorboard_shows_images_and_the_attention_of_a_pixel(task, model):
    shown = task.validation(task, model, "validation").examples()
    assert set(shown.pictures) == {"samples", "completions", "attention of a pixel"}
    for picture in shown.pictures.values():
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.std() > 1
    side = 2 + 98  # one row of 2 pixels, magnified 48 times
    assert shown.pictures["attention of a pixel"].shape == (side, 2 + 2 * 98, 3)  # one block of two heads
    red = (shown.pictures["attention of a pixel"] == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 2 * 48**2 and not red[: 2 + 48].any()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*is not causal:UserWarning")
def test_a_model_without_a_cache_draws_no_images_and_scores_of_heads_that_are_not_causal_are_marked(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "not_causal")
    task = registry.load_task(folder)
    part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 6}
    task.config.model.attention = [{**part, "selection": "top_k"}]
    model = task.make_model()
    shown = task.validation(task, model, "validation").examples()
    assert "samples" not in shown.pictures and "attention of a pixel" in shown.pictures
    assert "health" in shown.texts and shown.scalars
    workdir.save_model(folder, model)
    scores = evaluation.evaluate(folder, "validation")
    assert scores["not_causal"]
    assert "some heads are not causal: scores are not likelihoods" in evaluation.as_text(scores)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")
def test_onnx_files_score_images_as_the_model_does(run, model):
    needs("ONNX")
    files = RunONNX(Path(exporting.export(run, "onnx", ["score"])["path"]))
    found = files("score", {"token_ids": IDS[:1]})["nats"]
    np.testing.assert_allclose(found, nats_of(model, IDS[:1]), atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(("flag", "name"), [("--num_samples=2", "samples.png"), ("--complete=test", "completions.png")])
def test_the_program_writes_samples_and_completions(run, flag, name):
    assert "bits per dimension" in task_runs.run_program("generate", f"--workdir={run}", flag)[0]
    assert tf.io.decode_png((run / name).read_bytes()).shape[-1] == 3


def test_a_completion_has_the_upper_half_of_its_image(task, model, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    made = task.draw_images(model, Request(num_samples=3), TEST)
    found = task.codec.decode(np.stack([sample["token_ids"] for sample in made.samples]))
    np.testing.assert_array_equal(found[:, :1], TEST[:3, :1])
    assert (found[:, 1:] != TEST[:3, 1:]).any()
    assert [sample["num_tokens"] for sample in made.samples] == [6] * 3
    picture = image.draw_samples(task.codec, made.samples, TEST)
    given = np.concatenate([TEST[:3, :1], np.full((3, 1, 2, 3), 128, np.uint8)], axis=1)
    np.testing.assert_array_equal(picture, image.draw_grid([given, found, TEST[:3]]))


def test_an_interruption_keeps_the_bytes_so_far(task, model, tmp_path, monkeypatch):
    monkeypatch.setattr(byte_task, "BYTES_PER_SNAPSHOT", 5)

    def stop(samples):
        if samples[0]["num_tokens"] == 5:
            raise KeyboardInterrupt

    (sample,) = task.generate(model, Request(path=tmp_path / "a.png"), stop).samples
    assert sample["interrupted"] and len(sample["token_ids"]) == 5
    picture = image.draw_grid([task.codec.decode(np.append(sample["token_ids"], [129] * 7))[None]])
    np.testing.assert_array_equal(tf.io.decode_png((tmp_path / "a.png").read_bytes()), picture)
