"""A trained dense classifier whose attention is swapped for clustered attention with the same weights."""

import keras
import numpy as np
import pytest
from keras import ops

from tf_sparse_attention.layers import ClusteredAttention

NUM_KEYS, NUM_VALUES = 24, 8
LENGTH = 1 + 2 * NUM_KEYS


def draw(count, seed):
    """Rows of a key asked for and all pairs of key and value in any order; the label is the value of that key."""
    rng = np.random.default_rng(seed)
    keys = rng.permuted(np.tile(np.arange(NUM_KEYS), (count, 1)), axis=1)
    values = rng.integers(NUM_VALUES, size=keys.shape)
    asked = rng.integers(NUM_KEYS, size=count)
    rows = np.arange(count)
    pairs = np.stack([keys, NUM_KEYS + values], axis=-1).reshape(count, -1)
    return np.concatenate([keys[rows, asked][:, None], pairs], axis=1).astype("int32"), values[rows, asked]


class Embedding(keras.layers.Layer):
    """Each symbol beside the one before it, so that one layer of attention is enough."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.own, self.before = (keras.layers.Embedding(NUM_KEYS + NUM_VALUES + 1, 16) for _ in range(2))

    def call(self, rows):
        before = ops.pad(rows[:, :-1], [(0, 0), (1, 0)], constant_values=NUM_KEYS + NUM_VALUES)
        return ops.concatenate([self.own(rows), self.before(before)], axis=-1)


def classifier(attend):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Embedding(name="embedding")(inputs)
    x = attend(x)[:, 0]
    return keras.Model(inputs, keras.layers.Dense(NUM_VALUES, name="output")(x))


@pytest.fixture(scope="module")
def dense():
    keras.utils.set_random_seed(0)
    attention = keras.layers.MultiHeadAttention(4, 8, name="attention")
    model = classifier(lambda x: attention(x, x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"], jit_compile=False)
    model.fit(*draw(8192, seed=0), batch_size=64, epochs=6, verbose=0)
    assert model.evaluate(*draw(512, seed=1), verbose=0)[1] > 0.9
    return model


def agreement(dense, rows, **options):
    """Return how far from the dense model's probabilities those with clustered attention are, and how many agree."""
    attention = ClusteredAttention(4, 8, seed=0, name="attention", **options)
    model = classifier(attention)
    for layer in model.layers:
        if layer is attention:
            attention.copy_projections(dense.get_layer("attention"))
        elif layer.weights:
            layer.set_weights(dense.get_layer(layer.name).get_weights())
    model.compile(jit_compile=False)
    mine, theirs = (ops.convert_to_numpy(ops.softmax(m.predict(rows, verbose=0))) for m in (model, dense))
    apart = float(np.abs(mine - theirs).sum(-1).mean())
    return apart, float(np.mean(mine.argmax(-1) == theirs.argmax(-1)))


@pytest.mark.full
def test_agreement_rises_with_clusters_and_improved_beats_plain(dense):
    rows, _ = draw(512, seed=1)
    plain, improved = (
        [agreement(dense, rows, num_clusters=count, top_k=top_k) for count in (2, 8, 32)] for top_k in (None, 8)
    )
    for results in (plain, improved):
        apart, agrees = zip(*results, strict=True)
        assert apart[0] > apart[1] > apart[2]
        assert agrees[0] < agrees[2] and agrees[2] > 0.9
    assert all(better[0] < worse[0] for better, worse in zip(improved, plain, strict=True))
