"""Two replicas train routing layers as one device does on the joined batch.

Plain TensorFlow graphs: `jit_compile=True` does not work under MirroredStrategy.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import SIZE, normal, to_numpy, with_random_weights
from tests.draws import first, is_full
from tf_sparse_attention.layers import FeedForward, LocalAttention, RoutingAttention, TransformerBlock
from tf_sparse_attention.models import Backbone, CTCLoss, LanguageModel, Model, SpeechRecognizer, language_model_loss

STEPS, BATCH, LENGTH = 5, 4, 11
ROWS = (STEPS - 1) * BATCH + 1  # of the last batch one replica has a row and the other none
X, Y = normal(ROWS, LENGTH, SIZE), normal(ROWS, LENGTH, SIZE, seed=1)
NUM_BLOCKS = 2 if is_full() else 1
STATE = ("centroids", "sums", "counts", "unused")


def make_model(model_class=Model, remat=False):
    """Blocks of routing attention; two of the four centroids of each head get no token in the first step."""
    inputs = x = keras.Input((LENGTH, SIZE))
    for seed in range(NUM_BLOCKS):
        settings = {"commitment_loss": 0.1, "ema_decay": 0.9, "revive_after": 1, "seed": seed}
        attention = RoutingAttention(2, 4, num_clusters=4, cluster_size=3, **settings)
        x = TransformerBlock(attention, causal=True, remat=remat)(x)
    model = with_random_weights(model_class(inputs, x))
    for weight in model.weights:
        if weight.name in ("centroids", "sums"):
            # Of two opposite centroids one always scores higher than the two at zero.
            x = normal(2, 1, 4, seed=3)
            weight.assign(np.concatenate([x, 0 * x, -x, 0 * x], axis=1))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    return model


def state_of(model):
    return [to_numpy(weight.value) for weight in model.weights if weight.name in STATE]


def train(strategy, **own):
    """Return the model after five steps on a strategy, and {what: arrays}: losses, metrics, kernels and state."""
    with strategy.scope():
        model = make_model(**own)
    losses, centroids = [], []

    def note(batch, logs):
        losses.append(logs["loss"])
        centroids.append(state_of(model)[:: len(STATE)])

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    history = model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[callback]).history
    return model, {
        # Keras gives a callback the mean of what the replicas have seen, the last time of different numbers of rows.
        "losses": np.array(losses[:-1]),
        "metrics": np.array([history["loss"][0], history["mae"][0]]),
        "kernels": [to_numpy(weight.value) for weight in model.trainable_weights],
        "state": state_of(model),
        "first_centroids": centroids[0],
    }


@pytest.fixture(scope="module")
def on_one_device():
    return train(tf.distribute.get_strategy())[1]


@pytest.fixture(scope="module")
def on_two_replicas(two_replicas):
    return train(two_replicas)


def assert_same_training(found, expected):
    assert len(found["state"]) == NUM_BLOCKS * len(STATE)
    for what in ("losses", "metrics"):
        np.testing.assert_allclose(found[what], expected[what], rtol=0, atol=1e-6)
    for what in ("kernels", "state"):
        for a, b in zip(found[what], expected[what], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_two_replicas_equal_one_device_on_the_joined_batch(on_one_device, on_two_replicas):
    assert_same_training(on_two_replicas[1], on_one_device)
    for results in (on_one_device, on_two_replicas[1]):
        for centroids in results["first_centroids"]:
            # Centroids 1 and 3 were 0 without tokens: only revival moves them.
            assert np.any(centroids[:, [1, 3]] != 0)


@pytest.mark.full
def test_the_commitment_equals_that_of_one_device_if_replicas_have_different_padding(two_replicas):
    x = np.where(np.arange(LENGTH)[None, :, None] < np.array([11, 2, 5, 9])[:, None, None], X[:4], 0)
    kernels = []
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        with strategy.scope():
            inputs = keras.Input((LENGTH, SIZE))
            attention = RoutingAttention(2, 4, num_clusters=4, cluster_size=3, commitment_loss=1.0, seed=0)
            model = with_random_weights(Model(inputs, attention(keras.layers.Masking()(inputs), use_causal_mask=True)))
            attention.value_dense.trainable = attention.output_dense.trainable = False  # the commitment moves neither
            model.compile(keras.optimizers.SGD(1.0), jit_compile=False)
        model.fit(x, batch_size=BATCH, verbose=0)
        kernels.append(to_numpy(attention.query_dense.kernel.value))
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=0, atol=1e-6)


@pytest.mark.full
def test_two_replicas_with_rematerialisation_equal_one_device_without(on_one_device, two_replicas):
    assert_same_training(train(two_replicas, remat=True)[1], on_one_device)


HEADS = {"layer": "LocalAttention", "num_heads": 1, "key_dim": 4, "window": 4}
IDS = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 0], [6, 0, 0, 0, 0], [0, 0, 0, 0, 0]])


def language_model():
    model = LanguageModel(Backbone(9, 1, 4, [HEADS], intermediate_dim=8, seed=0))
    return model, {"token_ids": IDS}, IDS, language_model_loss()


def recognizer():
    encoder = Backbone(None, 1, 4, [HEADS], intermediate_dim=8, embedding={"dim": 3}, causal=False, seed=0)
    inputs = {"features": normal(4, 12, 3), "padding_mask": np.arange(12) < np.array([[12], [9], [4], [0]])}
    return SpeechRecognizer(encoder, 6), inputs, IDS, CTCLoss()


@pytest.mark.full
@pytest.mark.parametrize("make", first([language_model, recognizer], 1))
def test_a_mean_over_targets_equals_that_of_one_device_if_a_replica_has_fewer_targets_or_no_row(make, two_replicas):
    losses, models = [], []
    for strategy in (tf.distribute.get_strategy(), two_replicas):
        with strategy.scope():
            model, inputs, targets, loss = make()
            with_random_weights(model).compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
            batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(3)
            losses.append(model.fit(batches, shuffle=False, verbose=0).history["loss"])
        models.append(model)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for mine, theirs in zip(*(model.trainable_weights for model in models), strict=True):
        np.testing.assert_allclose(to_numpy(mine.value), to_numpy(theirs.value), atol=1e-5)


def test_the_commitment_of_all_layers_is_part_of_the_reported_loss(on_one_device):
    model = make_model()
    error = np.mean(np.square(to_numpy(model(X[:BATCH], training=True)) - Y[:BATCH]))
    losses = to_numpy(model.losses)
    assert len(losses) == NUM_BLOCKS and min(losses) > 0.01
    np.testing.assert_allclose(on_one_device["losses"][0], error + sum(losses), rtol=1e-6)


def test_a_plain_model_under_two_replicas_is_an_error_that_names_the_alternative(two_replicas):
    with two_replicas.scope():
        model = make_model(keras.Model)
    message = r"`clusters` \(Centroids\) .*`tf_sparse_attention\.models\.Model` instead .*2 replicas"
    with pytest.raises(RuntimeError, match=message):
        model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0)


@pytest.mark.full
def test_a_subclassed_model_with_a_plain_model_inside_updates_every_layer(on_one_device, two_replicas):
    class Wrapper(Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x, training=None):
            return self.inner(x, training=training)

    with two_replicas.scope():
        inner = make_model(keras.Model)
        model = Wrapper(inner)
        model.compile(inner.optimizer, "mse", jit_compile=False)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    for got, expected in zip(state_of(model), on_one_device["state"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_replicas_drop_different_places_and_leave_one_seed(two_replicas):
    with two_replicas.scope():
        layer = LocalAttention(2, 4, window=5, dropout=0.5, seed=1)
        feed_forward = FeedForward(16, dropout=0.5, seed=1)
        for part in (layer, feed_forward):
            part.build((2, LENGTH, SIZE))
    x = normal(2, LENGTH, SIZE)

    @tf.function
    def draw():
        return two_replicas.run(lambda: (layer(x, training=True), feed_forward(x, training=True)))

    for one, other in (two_replicas.experimental_local_results(result) for result in draw()):
        assert np.abs(to_numpy(one) - to_numpy(other)).max() > 0.01
    for part in (layer, feed_forward):
        (seed,) = (variable for variable in part.non_trainable_variables if "seed" in variable.path)
        states = [to_numpy(state) for state in two_replicas.experimental_local_results(seed.value)]
        np.testing.assert_array_equal(states, [[1, 1], [1, 1]])


def test_a_model_of_two_replicas_loads_on_one_device_and_back(on_two_replicas, two_replicas, tmp_path):
    model, results = on_two_replicas
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded, other = keras.models.load_model(tmp_path / "model.keras"), make_model()
    for copy in (loaded, other):
        copy.optimizer.build(copy.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    other.save_weights(tmp_path / "back.weights.h5")
    with two_replicas.scope():
        back = make_model()
        back.optimizer.build(back.trainable_variables)
        back.load_weights(tmp_path / "back.weights.h5")
    for copy in (loaded, other, back):
        for expected, got in zip(results["state"], state_of(copy), strict=True):
            np.testing.assert_array_equal(got, expected)
    for copy in (loaded, other):
        np.testing.assert_allclose(to_numpy(copy(X)), to_numpy(model(X)), rtol=0, atol=1e-6)
