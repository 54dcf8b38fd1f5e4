"""The main path through the library on either backend, with all defaults of Keras, TensorFlow, JAX and XLA."""

import keras
import numpy as np
import pytest

import tf_sparse_attention as tsa
from tests.cases import CASES, OF_EACH_CLASS
from tests.contracts import CLOSE, SIZE, assert_close, built, normal
from tests.oracle.layers import dense_call

PERIOD, LENGTH = 6, 24
TOKENIZER = tsa.data.ByteTokenizer()
HEADS = [
    {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 8, "position": "rotary"},
    {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 2, "cluster_size": 12},
]


def test_every_layer_equals_dense_attention_under_its_mask():
    query = normal(2, 13, SIZE)
    layers = {name: built(CASES[name]) for name in OF_EACH_CLASS}
    x = keras.Input(query.shape[1:])
    outputs = {name: layer(x, use_causal_mask=CASES[name].causal) for name, layer in layers.items()}
    found = keras.Model(x, outputs).predict(query, verbose=0)
    for name, layer in layers.items():
        assert_close(found[name], dense_call(layer, query, causal=CASES[name].causal).output, CLOSE)


@pytest.fixture(scope="module")
def rows():
    """Return texts whose second half follows from their first: each repeats some letters."""
    letters = np.random.default_rng(0).choice(list("abcdefgh"), (64, PERIOD))
    return ["".join(row) * (LENGTH // PERIOD) for row in letters]


@pytest.fixture(scope="module")
def trained(rows):
    """Return a language model and its losses in eight epochs of training."""
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 64}
    backbone = tsa.models.Backbone(TOKENIZER.vocabulary_size, attention=HEADS, **sizes)
    model = tsa.models.LanguageModel(backbone)
    model.compile(keras.optimizers.Adam(0.01), tsa.models.language_model_loss())
    targets = np.array([TOKENIZER.tokenize(row) for row in rows], "int32")
    inputs = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
    losses = model.fit(inputs, targets, batch_size=16, epochs=8, verbose=0).history["loss"]
    return model, losses


def test_training_lowers_the_loss(trained):
    _, losses = trained
    assert losses[-1] < 0.6 * losses[0]


def test_decoding_with_a_cache_gives_the_most_likely_tokens(trained, rows):
    model, _ = trained
    prompt = TOKENIZER.tokenize(rows[0])[: LENGTH // 2]
    found = model.generate(prompt, LENGTH, strategy="greedy", stop_token_ids=None)
    logits = model.predict_on_batch(np.array([[0, *found[:-1]]], "int32"))
    assert list(found[: len(prompt)]) == list(prompt)
    np.testing.assert_array_equal(found[len(prompt) :], logits[0, len(prompt) :].argmax(-1))


def test_a_saved_model_is_loaded(trained, tmp_path):
    model, _ = trained
    ids = np.arange(1, LENGTH + 1, dtype="int32")[None]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded.predict_on_batch(ids), model.predict_on_batch(ids))


def test_a_saved_model_of_tensorflow_gives_the_same_text(trained, rows, tmp_path):
    model, _ = trained
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(ValueError, match="TensorFlow backend"):
            tsa.export.export_language_model(model, tmp_path / "served", TOKENIZER)
        return
    import tensorflow as tf

    path = tsa.export.export_language_model(model, tmp_path / "served", TOKENIZER)
    scores = tf.saved_model.load(path).signatures["score"](text=tf.constant(rows[:2]))
    targets = np.array([TOKENIZER.tokenize(row) for row in rows[:2]])
    log_probs = tf.nn.log_softmax(model(np.pad(targets[:, :-1], [(0, 0), (1, 0)])))
    nats = -tf.reduce_sum(tf.gather(log_probs, targets, batch_dims=2), axis=1)
    np.testing.assert_allclose(scores["nats"], nats, rtol=1e-4)
