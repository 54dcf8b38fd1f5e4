"""Task "image": scores, drawn and completed images, and TensorBoard."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests.conftest import ROOT
from tests.export.portable_cases import RunONNX, needs
from tests.trainers import task_runs
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.trainers.shared import evaluation, exporting, sampling, workdir
from tf_sparse_attention.trainers.tasks import byte_task, image_pictures, registry
from tf_sparse_attention.trainers.tasks.task import Request

ARRAYS = task_runs.draw_images()


@pytest.fixture(scope="module")
def run(task_run):
    return task_run("image")


@pytest.fixture(scope="module")
def task(run):
    return registry.load_task(run)


@pytest.fixture(scope="module")
def model(run):
    return task_runs.load_model(run)


def nats_by_hand(model, images):
    """Compute -log p of each byte from its logits, in NumPy."""
    ids = images.reshape(len(images), -1).astype(int) + 1
    logits = np.asarray(model(np.pad(ids, [(0, 0), (1, 0)])[:, :-1].astype("int32")), np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]


def test_every_byte_is_scored_once_given_those_before_it(run, model):
    scores = evaluation.evaluate(run, "test")
    nats = nats_by_hand(model, ARRAYS["test"])
    assert (scores["images"], scores["bytes"]) == (5, ARRAYS["test"].size) == (5, nats.size)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")
def test_onnx_files_score_images_as_the_model_does(run, model):
    needs("ONNX")
    files = RunONNX(Path(exporting.export(run, "onnx", ["score"])["path"]))
    ids = ARRAYS["test"][:1].reshape(1, -1).astype("int32") + 1
    np.testing.assert_allclose(
        files("score", {"token_ids": ids})["nats"], nats_by_hand(model, ARRAYS["test"][:1]), atol=1e-4
    )


@pytest.mark.full
def test_the_program_writes_samples_and_completions(run):
    for arguments, name in ((["--num_samples=2"], "samples.png"), (["--complete=test"], "completions.png")):
        command = [sys.executable, "-m", "tf_sparse_attention.trainers.generate", f"--workdir={run}", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
        assert result.returncode == 0, result.stderr
        assert "bits per dimension" in result.stdout
        assert tf.io.decode_png((run / name).read_bytes()).shape[-1] == 3


@pytest.mark.full
def test_images_are_drawn_as_the_model_generates_them(task, model, tmp_path):
    path = tmp_path / "samples.png"
    made = task.generate(model, Request(num_samples=3, seed=5, path=path))
    rows = model.generator.generate([[]] * 3, 12, Sampling(temperature=1.0, top_p=1.0), [5, 6, 7], None, 257)
    for sample, row in zip(made.samples, rows, strict=True):
        np.testing.assert_array_equal(sample["token_ids"], row.token_ids)
        assert sample["num_tokens"] == 12 and not sample["interrupted"]
        assert sample["bits_per_dim"] == pytest.approx(-row.log_probs.mean() / math.log(2), rel=1e-5)
    images = task.codec.decode(np.stack([row.token_ids for row in rows]))
    picture = tf.io.decode_png(path.read_bytes()).numpy()
    np.testing.assert_array_equal(picture, image_pictures.draw_grid([images]))
    assert made.path == path and made.text.startswith("seed 5: ")
    (sample,) = task.generate(model, Request(settings={"num_beams": 2})).samples
    assert len(sample["token_ids"]) == 12 and "temperature" not in sample


def test_a_completion_has_the_upper_half_of_its_image(task, model, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    made = task.draw_images(model, Request(num_samples=3), ARRAYS["test"])
    found = task.codec.decode(np.stack([sample["token_ids"] for sample in made.samples]))
    np.testing.assert_array_equal(found[:, :1], ARRAYS["test"][:3, :1])
    assert (found[:, 1:] != ARRAYS["test"][:3, 1:]).any()
    assert [sample["num_tokens"] for sample in made.samples] == [6] * 3
    picture = image_pictures.draw_samples(task.codec, made.samples, ARRAYS["test"])
    given = np.concatenate([ARRAYS["test"][:3, :1], np.full((3, 1, 2, 3), 128, np.uint8)], axis=1)
    np.testing.assert_array_equal(picture, image_pictures.draw_grid([given, found, ARRAYS["test"][:3]]))


def test_the_given_bytes_of_blocks_end_before_the_lower_half():
    for height, order, block, expected in [
        (4, "blocks", (2, 2), 24),
        (6, "blocks", (2, 2), 30),  # one row of the first block of the second band
        (5, "raster", None, 24),
    ]:
        assert image_pictures.num_given(tsa.data.ImageCodec(height, 4, 3, order, block)) == expected


def test_an_interruption_keeps_the_bytes_so_far(task, model, tmp_path, monkeypatch):
    monkeypatch.setattr(byte_task, "BYTES_PER_SNAPSHOT", 5)

    def stop(samples):
        if samples[0]["num_tokens"] == 5:
            raise KeyboardInterrupt

    (sample,) = task.generate(model, Request(path=tmp_path / "a.png"), stop).samples
    assert sample["interrupted"] and len(sample["token_ids"]) == 5
    picture = image_pictures.draw_grid([task.codec.decode(np.append(sample["token_ids"], [129] * 7))[None]])
    np.testing.assert_array_equal(tf.io.decode_png((tmp_path / "a.png").read_bytes()), picture)


def test_small_images_of_a_picture_are_magnified():
    picture = image_pictures.draw_grid([[np.full((48, 96, 1), 7, np.uint8)], [np.zeros((48, 96, 4), np.uint8)] * 2])
    assert picture.shape == (2 + 2 * 50, 2 + 2 * 98, 3)
    assert (picture[2:50, 2:98] == 7).all() and (picture[:, 98:100] == 255).all()
    assert (picture[52:100, 100:196] == 0).all()
    assert image_pictures.draw_grid([[np.zeros((32, 20, 3), np.uint8)]]).shape == (2 + 98, 2 + 62, 3)
