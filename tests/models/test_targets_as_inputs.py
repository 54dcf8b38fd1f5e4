"""Language models with an adaptive vocabulary train and score on what their targets need, and on no more."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tf_sparse_attention.models import Backbone, BitsPerByte, LanguageModel, StatefulModel, language_model_loss

NEAR = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 8}
FREQUENT = 20  # words of the first cluster, of 40
EVERY_WORD = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def make(tied=False, **options):
    keras.utils.set_random_seed(0)
    embedding = {"cutoffs": (FREQUENT,), "div_value": 2}
    backbone = Backbone(40, 1, 16, [NEAR], embedding=embedding, intermediate_dim=32, seed=1, **options)
    return LanguageModel(backbone, tie_embeddings=tied)


def batch(words=40, padded=3):
    ids, targets = np.random.default_rng(0).integers(1, words, (2, 4, 12)).astype("int32")
    targets[1, 12 - padded :] = 0
    return ids, targets


def trained(model, loss, steps=2, **options):
    model.compile(keras.optimizers.SGD(0.5), loss=loss, **options)
    return [model.train_on_batch(*batch()) for _ in range(steps)]


# By default not compiled, which takes longer than these steps.
@pytest.mark.parametrize(("tied", "options"), first([(False, {"run_eagerly": True}), (True, {"jit_compile": True})], 1))
def test_training_is_that_with_the_probabilities_of_all_words(tied, options):
    quick, whole = make(tied), make(tied)
    losses = trained(quick, language_model_loss(), **options)
    np.testing.assert_allclose(losses, trained(whole, EVERY_WORD, run_eagerly=True), rtol=1e-5)
    for one, other in zip(quick.weights, whole.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=one.path)
    forbid_rare_words(quick)
    assert np.isfinite(quick.test_on_batch(*batch(words=FREQUENT)))


def forbid_rare_words(model):
    """Let whatever reads the words of the rare cluster for the logits become NaN."""
    weight = next(weight for weight in model.to_vocabulary.weights if weight.name == "bias_1")
    weight.assign(np.full(weight.shape, np.nan))


def test_other_metrics_get_the_probabilities_of_all_words():
    model, (ids, targets) = make(), batch()
    model.compile("sgd", loss=language_model_loss(), metrics=["sparse_categorical_accuracy"], run_eagerly=True)
    expected = np.mean(np.argmax(model(ids), axis=-1) == targets)
    assert model.test_on_batch(ids, targets)[1] == pytest.approx(expected)


def test_scores_are_those_of_the_probabilities_of_all_words():
    model, (ids, targets) = make(), batch()
    options = {"metrics": [BitsPerByte()], "weighted_metrics": None, "run_eagerly": True}
    model.compile("sgd", loss=language_model_loss(), **options)
    _, bits = model.evaluate(ids, targets, batch_size=2, verbose=0)
    whole = BitsPerByte()
    whole.update_state(targets, model(ids))
    assert bits == pytest.approx(float(whole.result()), rel=1e-5)
    weights = np.where(targets > 0, 0.5, 0)
    assert model.test_on_batch(ids, targets, weights)[0] == pytest.approx(0.5 * bits * np.log(2), rel=1e-5)


def test_a_call_with_targets_answers_with_their_nats():
    model, (ids, targets) = make(), batch()
    inputs = {"token_ids": ids, "targets": targets}
    expected = -np.take_along_axis(np.asarray(model(ids)), targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(model(inputs), expected, rtol=1e-5)
    assert model.compute_output_shape({name: x.shape for name, x in inputs.items()}) == (4, 12)
    assert model.compute_output_shape(ids.shape) == (4, 12, 40)


@pytest.mark.full
def test_a_compiled_model_trains_on_once_it_is_loaded(tmp_path):
    model = make()
    trained(model, language_model_loss(), run_eagerly=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.train_on_batch(*batch()) == pytest.approx(model.train_on_batch(*batch()), rel=1e-5)
    forbid_rare_words(loaded)
    assert np.isfinite(loaded.test_on_batch(*batch(words=FREQUENT)))


def test_a_model_that_goes_on_tells_its_targets_too():
    readers = [StatefulModel(make(memory_length=6), 4) for _ in range(2)]
    losses = [
        trained(reader, loss, run_eagerly=keras.backend.backend() != "jax")
        for reader, loss in zip(readers, (language_model_loss(), EVERY_WORD), strict=True)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    readers[0].reset_state()
    forbid_rare_words(readers[0].model)
    assert np.isfinite(readers[0].test_on_batch(*batch(words=FREQUENT)))


def test_a_batch_of_padding_costs_nothing():
    for outputs in (np.full((2, 3, 5), np.nan, "float32"), ops.ones((2, 3))):
        assert float(language_model_loss()(np.zeros((2, 3), "int32"), outputs)) == 0


def test_the_loss_is_that_of_keras_and_comes_back_from_its_configuration():
    (_, targets), logits = batch(), np.random.default_rng(1).normal(size=(4, 12, 40)).astype("float32")
    loss = keras.losses.deserialize(keras.losses.serialize(language_model_loss()))
    for weights in (None, np.random.default_rng(2).random((4, 12))):
        np.testing.assert_allclose(loss(targets, logits, weights), EVERY_WORD(targets, logits, weights), rtol=1e-6)
