"""SavedModels of speech recognizers: transcripts of features and recordings equal the model's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_sparse_attention.data import LogMel
from tf_sparse_attention.export import export_speech
from tf_sparse_attention.models import Backbone, SpeechRecognizer

LABELS = ["ä", "b", " "]
SOUND = LogMel(sample_rate=8000, num_bands=6)
LOCAL = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 6, "position": "rotary"}
LENGTHS = [41, 3, 20]


def make_model(attention):
    keras.utils.set_random_seed(5)
    encoder = Backbone(None, 1, 16, attention, intermediate_dim=16, embedding={"dim": 8}, causal=False)
    model = SpeechRecognizer(encoder, 3, num_features=6, subsampling=2, feature_mean=range(6), feature_std=[2.0] * 6)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * keras.random.normal(weight.shape, seed=1))
    return model


@pytest.fixture(scope="module")
def model():
    return make_model([LOCAL])


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return export_speech(model, tmp_path_factory.mktemp("export") / "recognizer", LABELS, "-", SOUND)


@pytest.fixture(scope="module")
def served(exported):
    return tf.saved_model.load(exported).signatures


def recordings(lengths=LENGTHS, size=(6,)):
    random = np.random.default_rng(0)
    return [random.normal(size=(length, *size)).astype("float32") for length in lengths]


def padded(rows):
    """Return rows padded with numbers that must not change the outputs."""
    array = np.full((len(rows), max(map(len, rows)), *rows[0].shape[1:]), 9.0, "float32")
    for row, given in zip(array, rows, strict=True):
        row[: len(given)] = given
    return tf.constant(array), tf.constant([len(row) for row in rows])


def check(model, rows, found):
    """Compare outputs with those of the model for each recording alone."""
    for number, features in enumerate(rows):
        log_probs = keras.ops.convert_to_numpy(model(features[None]))[0]
        np.testing.assert_allclose(found["log_probs"][number, : len(log_probs)], log_probs, atol=1e-4)
        np.testing.assert_allclose(found["log_prob"][number], log_probs.max(axis=-1).sum(), rtol=1e-4)
        (ids,) = model.transcribe([features])
        assert found["num_labels"][number] == len(ids)
        assert found["text"].numpy()[number].decode() == "-".join(LABELS[number - 1] for number in ids)


def test_transcripts_of_features_are_those_of_the_model(model, served):
    for lengths in (LENGTHS, [7]):
        rows = recordings(lengths)
        features, num_frames = padded(rows)
        found = served["transcribe"](features=features, num_frames=num_frames)
        assert len(lengths) < 3 or sum(found["num_labels"].numpy()) > 3
        check(model, rows, found)


def test_transcripts_of_sound_are_those_of_its_features(model, served):
    rows = recordings([2000, 900, 90], ())  # the last is shorter than a window
    samples, num_samples = padded(rows)
    found = served["transcribe_sound"](samples=samples, num_samples=num_samples)
    check(model, [SOUND(row) for row in rows], found)


def test_inputs_and_arguments_that_do_not_fit_are_errors_that_name_them(model, served, tmp_path):
    for count in ([5, 6], [0], [8]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`num_frames`"):
            served["transcribe"](features=tf.zeros((1, 7, 6)), num_frames=tf.constant(count))
    for arguments, message in [
        ({"labels": ["a"]}, "`labels`"),
        ({"labels": "abc"}, "`labels`"),
        ({"separator": 1}, "`separator`"),
        ({"log_mel": LogMel()}, "`log_mel` must be a `LogMel` of 6 bands"),
    ]:
        with pytest.raises(ValueError, match=message):
            export_speech(**{"model": model, "path": tmp_path / "x", "labels": LABELS, **arguments})
