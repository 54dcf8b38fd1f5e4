"""Loss and metrics against a hand-worked case."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.models import BitsPerByte, Perplexity, PerplexityPerWord, language_model_loss

# Two ids of four with probability 1/2 and 1/8; the third target is padding.
TARGETS = np.array([[1, 2, 0]], "int32")
LOGITS = np.log(np.array([[[1, 4, 2, 1], [5, 1, 1, 1], [1, 1, 1, 5]]], "float32") / 8)
NATS = (np.log(2) + np.log(8)) / 2


def measured(metric, weights=None):
    metric.update_state(TARGETS, LOGITS, weights)
    return float(metric.result())


def test_the_loss_is_the_mean_over_what_is_not_padding_also_with_a_mask_of_keras():
    np.testing.assert_allclose(language_model_loss()(TARGETS, LOGITS), NATS, rtol=1e-6)
    logits = keras.ops.convert_to_tensor(LOGITS)
    logits._keras_mask = keras.ops.convert_to_tensor(TARGETS != 0)  # as the output of a model has it
    np.testing.assert_allclose(language_model_loss()(TARGETS, logits), NATS, rtol=1e-6)


def test_metrics_are_means_per_token_per_byte_and_per_word_without_tokens_of_weight_zero():
    for metric, expected in [
        (Perplexity(), np.exp(NATS)),
        (BitsPerByte(), 2.0),
        (BitsPerByte(tokens_per_byte=0.25), 0.5),
        (PerplexityPerWord(tokens_per_word=3.0), np.exp(3 * NATS)),
    ]:
        np.testing.assert_allclose(measured(metric), expected, rtol=1e-6)
    np.testing.assert_allclose(measured(Perplexity(), np.array([[1.0, 0.0, 1.0]])), 2.0, rtol=1e-6)


def test_batches_add_up_and_reset():
    metric = Perplexity()
    metric.update_state(TARGETS[:, :1], LOGITS[:, :1])
    metric.update_state(TARGETS[:, 1:], LOGITS[:, 1:])
    np.testing.assert_allclose(metric.result(), np.exp(NATS), rtol=1e-6)
    metric.reset_state()
    assert float(metric.result()) == 1.0


def test_metrics_come_back_from_their_configuration_and_ratios_must_be_positive():
    for metric in (Perplexity(), BitsPerByte(0.5), PerplexityPerWord(4.0)):
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert measured(again) == measured(metric)
    for make, name in ((BitsPerByte, "tokens_per_byte"), (PerplexityPerWord, "tokens_per_word")):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive number. Received: {name}=0"):
            make(0)


def test_smoothed_labels_are_those_of_keras():
    targets, logits = np.array([[2, 1, 0]]), np.random.default_rng(0).normal(size=(1, 3, 5)).astype("float32")
    smoothed = language_model_loss(label_smoothing=0.1)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    found = smoothed(targets, logits)
    np.testing.assert_allclose(found, expected(np.eye(5)[targets[:, :2]], logits[:, :2]), rtol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(smoothed))
    np.testing.assert_allclose(again(targets, logits), found)
    with pytest.raises(ValueError, match="`label_smoothing`"):
        smoothed(targets, logits[..., 0])
