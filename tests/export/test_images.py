"""SavedModels of image models: scores and sampled images equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.export.serving import LOCAL
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.export import export_images
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator

CODEC = ImageCodec(height=4, width=2, channels=1, order="blocks", block_shape=(2, 1))
IMAGES = np.random.default_rng(0).integers(256, size=(3, 4, 2, 1), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    model = LanguageModel(Backbone(257, attention=[LOCAL], embedding={"grid": CODEC.grid}, **sizes))
    model._generator = Generator(model, run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "painter"
    return export_images(model, path, CODEC, batch_size=2, jit_compile=False)


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(exported).signatures


def draw(served, images, **settings):
    given = {"num_rows": 2, "temperature": 1.0, "top_p": 0.9, "seed": 5, **settings}
    inputs = {name: tf.constant(value) for name, value in given.items()}
    return {name: x.numpy() for name, x in served["generate"](images=tf.constant(images), **inputs).items()}


@pytest.mark.full
def test_scores_are_the_nats_of_all_bytes(model, served):
    ids = CODEC.encode(IMAGES)
    log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(np.pad(ids, [(0, 0), (1, 0)])[:, :-1])))
    nats = -np.take_along_axis(log_probs, ids[..., None], axis=-1).sum(axis=(1, 2))
    for count in (0, 3):
        found = served["score"](images=tf.constant(IMAGES[:count]))
        np.testing.assert_allclose(found["nats"], nats[:count], rtol=1e-5)
        np.testing.assert_allclose(found["bits_per_dim"], nats[:count] / np.log(2) / 8, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("num_rows", "num_given"), [(1, 1), (0, 0), (2, 4), (4, 8)])
def test_images_are_those_that_the_model_draws_below_the_given_rows(model, served, num_rows, num_given):
    strategy, prompts = Sampling(top_p=0.9), list(CODEC.encode(IMAGES)[:, :num_given])
    rows = model.generator.generate(prompts, CODEC.length, strategy, 5, None, 257)
    found = draw(served, IMAGES, num_rows=num_rows)
    np.testing.assert_array_equal(found["images"], CODEC.decode(np.stack([row.token_ids for row in rows])))
    np.testing.assert_allclose(found["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-3)
    np.testing.assert_array_equal(draw(served, IMAGES[:1], num_rows=num_rows)["images"], found["images"][:1])


@pytest.mark.full
def test_inputs_that_do_not_fit_are_errors_that_name_them(served):
    for settings, name in (({"num_rows": 5}, "num_rows"), ({"top_p": 0.0}, "top_p")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"`{name}`"):
            draw(served, IMAGES, **settings)


def test_arguments_that_do_not_fit_are_errors_that_name_them(model, tmp_path):
    small = LanguageModel(Backbone(200, 1, 16, [LOCAL]))
    for given, codec, message in [
        (model, "raster", "`codec` must be an `ImageCodec`"),
        (model, ImageCodec(4, 4, 2), "`codec` must have images .* at most 8 bytes.* 32 bytes"),
        (small, CODEC, "`model` must have the 257 ids of the codec.*200"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_images(given, tmp_path / "x", codec)
