"""SavedModels of audio models: scores and sampled recordings equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.draws import first
from tests.export.serving import LOCAL
from tf_sparse_attention.data import AudioCodec, ImageCodec
from tf_sparse_attention.export import export_audio
from tf_sparse_attention.generation import Sampling
from tf_sparse_attention.models import Backbone, LanguageModel
from tf_sparse_attention.models.generator import Generator

CODEC = AudioCodec(sample_rate=100)
WINDOW = 8
LENGTHS = [19, 0, 8]
SAMPLES = np.random.default_rng(0).integers(-9000, 9000, size=(3, 20), dtype=np.int16)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32}
    model = LanguageModel(Backbone(257, attention=[LOCAL], embedding={"grid": (16, 6)}, **sizes))
    model._generator = Generator(model, run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "player"
    return export_audio(model, path, CODEC, WINDOW, batch_size=2, jit_compile=False)


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(exported).signatures


def score(served, samples, num_samples):
    found = served["score"](samples=tf.constant(samples), num_samples=tf.constant(num_samples, tf.int32))
    return {name: x.numpy() for name, x in found.items()}


def draw(served, samples, num_samples, **settings):
    given = {"num_samples": np.asarray(num_samples, np.int32), "max_length": 12, "temperature": 1.0, "top_p": 0.9}
    inputs = {name: tf.constant(value) for name, value in {**given, "seed": 5, **settings}.items()}
    return {name: x.numpy() for name, x in served["generate"](samples=tf.constant(samples), **inputs).items()}


def nats_by_hand(model, samples):
    """The nats of all samples, each window by itself."""
    ids, nats = CODEC.encode(samples), 0.0
    for begin in range(0, len(ids), WINDOW):
        window = ids[begin : begin + WINDOW]
        log_probs = keras.ops.log_softmax(model(np.array([[0, *window[:-1]]], "int32"))[0])
        nats -= keras.ops.convert_to_numpy(log_probs)[np.arange(len(window)), window].sum()
    return nats


def test_scores_are_the_nats_of_all_samples(model, served):
    nats = [nats_by_hand(model, row[:length]) for row, length in zip(SAMPLES, LENGTHS, strict=True)]
    for count in (3, 0):
        found = score(served, SAMPLES[:count], LENGTHS[:count])
        bits = nats[:count] / np.log(2) / np.maximum(LENGTHS[:count], 1)
        np.testing.assert_allclose(found["nats"], nats[:count], rtol=1e-5)
        np.testing.assert_allclose(found["bits_per_byte"], bits, rtol=1e-5)


@pytest.mark.parametrize("lengths", first([[9, 0, 4], [0, 0, 0]], 1))
def test_recordings_are_continued_as_by_the_model(model, served, lengths):
    prompts = [CODEC.encode(row)[:length] for row, length in zip(SAMPLES, lengths, strict=True)]
    rows = model.generator.generate(prompts, 12, Sampling(top_p=0.9), 5, None, 257)
    found = draw(served, SAMPLES, lengths)
    np.testing.assert_array_equal(found["samples"], CODEC.decode(np.stack([row.token_ids for row in rows])))
    np.testing.assert_allclose(found["log_prob"], [row.log_probs.sum() for row in rows], atol=1e-3)
    np.testing.assert_array_equal(draw(served, SAMPLES[:1], lengths[:1])["samples"], found["samples"][:1])
    assert draw(served, np.zeros((0, 0), np.int16), [])["samples"].shape == (0, 12)


def test_inputs_and_arguments_that_do_not_fit_are_errors_that_name_them(model, served, tmp_path):
    for lengths, settings, message in [
        ([3, 3], {}, "`num_samples` must have one number per row.*2"),
        ([3, 3, 21], {}, "`num_samples` must be from 0 to the length of the rows"),
        ([-1, 3, 3], {}, "`num_samples` must be from 0 to the length of the rows"),
        ([3, 3, 13], {}, "`max_length` must be positive and at least the length of each prompt.*12"),
        ([3, 3, 3], {"max_length": 97}, "`max_length` must be at most 96"),
        ([3, 3, 3], {"top_p": 0.0}, "`top_p`"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            draw(served, SAMPLES, lengths, **settings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`num_samples` must be from 0 to the length"):
        score(served, SAMPLES, [1, 2, 21])
    good = {"model": model, "path": tmp_path / "x", "codec": CODEC, "sequence_length": 8}
    for arguments, message in [
        ({"codec": ImageCodec(4, 2)}, "`codec`"),
        ({"sequence_length": 97}, "`sequence_length` must be at most the 96 positions"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"weight_dtype": "int4"}, "`weight_dtype`"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_audio(**{**good, **arguments})


@pytest.mark.pages
def test_the_example_of_the_readme_runs(exported, monkeypatch, capsys):
    example = (exported / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(exported.parent)
    exec(compile(example, "README.md", "exec"), {})
    assert "'bits_per_byte': array([" in (printed := capsys.readouterr().out) and "'samples': array([[" in printed
