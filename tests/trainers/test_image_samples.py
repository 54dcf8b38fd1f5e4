"""Drawn and completed images: bytes, pictures and invalid requests."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_attention as tsa
from tests.trainers import small_images
from tests.trainers.eager import EAGER
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.trainers.shared import sampling
from tf_sparse_attention.trainers.tasks import byte_task, image, image_pictures
from tf_sparse_attention.trainers.tasks.task import Request

pytestmark = EAGER


@pytest.fixture(scope="module")
def arrays():
    return small_images.make_arrays()


@pytest.fixture(scope="module")
def task(arrays, tmp_path_factory, data_dir):
    path = tmp_path_factory.mktemp("arrays") / "small.npz"
    np.savez(path, **{f"x_{name}": array for name, array in arrays.items()})
    config = small_images.make_config()
    config.data.update(path=str(path), data_dir=str(data_dir))
    return image.Task(config)


@pytest.fixture(scope="module")
def model(task):
    """An untrained model."""
    keras.utils.set_random_seed(0)
    return small_images.generate_eagerly(task.make_model())


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


def test_a_completion_has_the_upper_half_of_its_image(task, model, arrays, monkeypatch):
    monkeypatch.setattr(sampling, "BATCH_SIZE", 2)
    made = task.draw_images(model, Request(num_samples=3), arrays["test"])
    found = task.codec.decode(np.stack([sample["token_ids"] for sample in made.samples]))
    np.testing.assert_array_equal(found[:, :1], arrays["test"][:3, :1])
    assert (found[:, 1:] != arrays["test"][:3, 1:]).any()
    assert [sample["num_tokens"] for sample in made.samples] == [6] * 3
    picture = image_pictures.draw_samples(task.codec, made.samples, arrays["test"])
    given = np.concatenate([arrays["test"][:3, :1], np.full((3, 1, 2, 3), 128, np.uint8)], axis=1)
    np.testing.assert_array_equal(picture, image_pictures.draw_grid([given, found, arrays["test"][:3]]))


def test_the_given_bytes_of_blocks_end_before_the_lower_half():
    for height, order, block, expected in [
        (4, "blocks", (2, 2), 24),
        (6, "blocks", (2, 2), 30),  # one row of the first block of the second band
        (5, "raster", None, 24),
    ]:
        codec = tsa.data.ImageCodec(height, 4, 3, order, block)
        assert image_pictures.num_given(codec) == expected


def test_an_interruption_keeps_the_bytes_so_far(task, model, tmp_path, monkeypatch):
    monkeypatch.setattr(byte_task, "BYTES_PER_SNAPSHOT", 5)

    def stop(samples):
        if samples[0]["num_tokens"] == 5:
            raise KeyboardInterrupt

    made = task.generate(model, Request(path=tmp_path / "a.png"), stop)
    (sample,) = made.samples
    assert sample["interrupted"] and len(sample["token_ids"]) == 5
    ids = np.append(sample["token_ids"], [129] * 7)
    np.testing.assert_array_equal(
        tf.io.decode_png((tmp_path / "a.png").read_bytes()), image_pictures.draw_grid([task.codec.decode(ids)[None]])
    )


def test_requests_that_do_not_fit_images_are_errors_that_name_them(task, model, arrays, subtests):
    for request, message in [
        (Request(prompt=b"a" * 9999), r"`prompt`.*prompt=.{,40}\.$"),
        (Request(length=3), "`length`"),
        (Request(num_samples=6), "`num_samples` must be at most the 5 images"),
        (Request(num_samples=0), "`num_samples`"),
        (Request(path="samples.jsonl"), "`output` must be a file NAME.png"),
        (Request(path="no/such.png"), "`output` must be a file in an existing folder"),
        (Request(settings={"length_penalty": 1.0}), r"\(`num_beams`\) is required"),
    ]:
        with subtests.test(message):
            with pytest.raises(ValueError, match=message):
                task.generate(model, request._replace(complete="test"))
            with pytest.raises(ValueError, match=message):
                task.draw_images(model, request, arrays["test"])
    with pytest.raises(ValueError, match="`num_samples` must be 1 for beam search"):
        task.generate(model, Request(num_samples=2, settings={"num_beams": 2}))


@pytest.mark.full
def test_beams_find_an_image(task, model):
    (sample,) = task.generate(model, Request(settings={"num_beams": 2})).samples
    assert len(sample["token_ids"]) == 12 and "temperature" not in sample


def test_small_images_of_a_picture_are_magnified():
    picture = image_pictures.draw_grid([[np.full((48, 96, 1), 7, np.uint8)], [np.zeros((48, 96, 4), np.uint8)] * 2])
    assert picture.shape == (2 + 2 * 50, 2 + 2 * 98, 3)
    assert (
        (picture[2:50, 2:98] == 7).all() and (picture[:, 98:100] == 255).all() and (picture[52:100, 100:196] == 0).all()
    )
    assert image_pictures.draw_grid([[np.zeros((32, 20, 3), np.uint8)]]).shape == (2 + 98, 2 + 62, 3)
