"""Task "image": training, bit-exact resumption, scores, TensorBoard, export, and invalid settings."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.export.portable_cases import RunONNX, needs
from tests.trainers import small_images
from tests.trainers.eager import EAGER
from tests.trainers.interrupted import check_resumed_run
from tests.trainers.small_images import SHAPE, generate_eagerly
from tf_sparse_attention.trainers.shared import evaluation, exporting, overrides, training, workdir
from tf_sparse_attention.trainers.tasks import registry
from tf_sparse_attention.trainers.tasks.task import Request

pytestmark = EAGER

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def arrays():
    return small_images.make_arrays()


@pytest.fixture(scope="module")
def make_config(arrays, tmp_path_factory, data_dir):
    path = tmp_path_factory.mktemp("arrays") / "small.npz"
    np.savez(path, **{f"x_{name}": array for name, array in arrays.items()})

    def make(variant="local"):
        config = small_images.make_config(variant)
        config.data.update(path=str(path), data_dir=str(data_dir))
        return config

    return make


@pytest.fixture(scope="module")
def finished(make_config, tmp_path_factory):
    """A run directory. Tests may add scores and samples."""
    folder = tmp_path_factory.mktemp("finished")
    training.train(make_config(), folder)
    return folder


def nats_by_hand(model, images):
    """Compute -log p of each byte from its logits, in NumPy."""
    ids = images.reshape(len(images), -1).astype(int) + 1
    logits = np.asarray(model(np.pad(ids, [(0, 0), (1, 0)])[:, :-1].astype("int32")), np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]


def test_validation_is_in_bits_per_dimension(finished, arrays):
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if "validation/loss" in row]
    nats = nats_by_hand(workdir.load_model(finished), arrays["validation"]).mean()
    assert row["validation/loss"] == pytest.approx(nats, rel=1e-5)
    assert row["validation/bits_per_dim"] == pytest.approx(nats / math.log(2), rel=1e-5)


def test_every_byte_is_scored_once_given_those_before_it(finished, arrays):
    scores = evaluation.evaluate(finished, "test")
    nats = nats_by_hand(workdir.load_model(finished), arrays["test"])
    assert (scores["images"], scores["bytes"]) == (5, arrays["test"].size) == (5, nats.size)
    assert scores["nats"] == pytest.approx(nats.sum(), rel=1e-5)
    assert scores["bits_per_dim"] == pytest.approx(nats.mean() / math.log(2), rel=1e-5)
    assert json.loads((finished / "evaluation-test.json").read_text()) == scores
    assert f"bits per dimension    {scores['bits_per_dim']:.4f}" in evaluation.as_text(scores)
    assert "not_causal" not in scores


@pytest.mark.full
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(make_config, tmp_path, monkeypatch):
    config = make_config("local_2d")
    config.data.update(use_flips=True, image_order="blocks", image_block=(1, 1))
    config.model.attention = [{**config.model.attention[0], "order": "blocks"}]
    config.model.grid = [2, 2, 1, 1, 3]
    check_resumed_run(config, tmp_path, monkeypatch)


def test_tensorboard_shows_images_and_the_attention_of_a_pixel(finished):
    task, model = registry.load_task(finished), generate_eagerly(workdir.load_model(finished))
    shown = task.validation(task, model, "validation").examples()
    assert set(shown.pictures) == {"samples", "completions", "attention of a pixel"}
    for picture in shown.pictures.values():
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.std() > 1
    side = 2 + 98  # one row of 2 pixels, magnified 48 times
    assert shown.pictures["attention of a pixel"].shape == (side, 2 + 2 * 98, 3)  # one block of two heads
    red = (shown.pictures["attention of a pixel"] == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 2 * 48**2 and not red[: 2 + 48].any()


@pytest.mark.filterwarnings("ignore:.*RoutingAttention with selection:UserWarning")
def test_a_model_without_a_cache_draws_no_images_and_scores_of_heads_that_are_not_causal_are_marked(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "not_causal")
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


def test_settings_that_do_not_fit_images_are_errors_that_name_them(make_config, tmp_path, subtests):
    large = {"image_shape": (4, 5, 3), "sequence_length": 60}
    for section, settings, message in [
        ("model", {"causal": False}, "`config.model.causal`"),
        ("data", {"path": None}, "`config.data.path`"),
        ("data", {"sequence_length": 64}, "`config.data.sequence_length` must be 12"),
        ("data", large, "must hold only images of 4 x 5 pixels with 3 channels. Received: 12 of 12"),
        ("data", {"image_order": "blocks"}, "`block_shape`"),
        ("model", {"grid": [4, 3]}, "`config.model.grid` must be .2, 2, 3. "),
    ]:
        config = make_config()
        config[section].update(settings)
        with subtests.test(str(settings)), pytest.raises(ValueError, match=message):
            training.train(config, tmp_path)


def test_images_of_another_shape_or_order_raise_an_error(finished, make_config, tmp_path):
    config = make_config()
    workdir.check_state(finished, registry.make_task(config).get_state())
    config.data.update(image_order="blocks", image_block=(1, 1))
    with pytest.raises(ValueError, match=r"`config\.data` must match the codec of the checkpoint .*'blocks'"):
        workdir.check_state(finished, registry.make_task(config).get_state())
    np.savez(tmp_path / "large.npz", x_test=np.zeros((2, 2, 8, 3), np.uint8))
    changes = overrides.overridable_settings()
    changes.data.path = str(tmp_path / "large.npz")
    with pytest.raises(ValueError, match=r"must have images of shape \(2, 2, 3\), as the model requires\. Received"):
        evaluation.evaluate(finished, "test", changes)


@pytest.mark.full
def test_the_exported_model_scores_a_grey_image_without_the_library(finished):
    result = exporting.export(finished, jit_compile=False)
    nats = nats_by_hand(workdir.load_model(finished), np.full((1, *SHAPE), 128, np.uint8)).sum()
    assert result["nats"] == pytest.approx(nats, rel=1e-5)
    trial = f"a grey image has {result['bits_per_dim']:.4f} bits per dimension"
    assert result["test_result"] == f"loaded in a process without the library, {trial}"
    generate = tf.saved_model.load(result["path"]).signatures["generate"]
    settings = {"num_rows": 1, "temperature": 0.0, "top_p": 1.0, "seed": 0}
    given = {name: tf.constant(value) for name, value in settings.items()}
    assert generate(images=tf.zeros((2, *SHAPE), tf.uint8), **given)["images"].shape == (2, *SHAPE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx", "ignore::FutureWarning:tf2onnx")
def test_onnx_files_score_images_as_the_model_does(finished, arrays):
    needs("ONNX")
    run = RunONNX(Path(exporting.export(finished, "onnx", ["score"])["path"]))
    ids = arrays["test"][:1].reshape(1, -1).astype("int32") + 1
    wanted = nats_by_hand(workdir.load_model(finished), arrays["test"][:1])
    np.testing.assert_allclose(run("score", {"token_ids": ids})["nats"], wanted, atol=1e-4)


def test_a_model_of_text_completes_no_images(untrained):
    with pytest.raises(ValueError, match=r"`complete` must be unset for text: it is for images\. Received: test\."):
        registry.load_task(untrained).generate(workdir.load_model(untrained), Request(complete="test"))


@pytest.mark.full
def test_the_program_writes_samples_and_completions(finished):
    keras.utils.set_random_seed(0)
    for arguments, name in ((["--num_samples=2"], "samples.png"), (["--complete=test"], "completions.png")):
        command = [sys.executable, "-m", "tf_sparse_attention.trainers.generate", f"--workdir={finished}", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
        assert result.returncode == 0, result.stderr
        assert "bits per dimension" in result.stdout
        assert tf.io.decode_png((finished / name).read_bytes()).shape[-1] == 3
