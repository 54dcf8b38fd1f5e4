"""Layers and models that look ahead in one way each, and causal ones, for the tests of the causality audit."""

import keras
from keras import layers, ops


class Ahead(layers.Layer):
    """y_t = x_t + strength x_(t + distance): a soft look ahead, none where the sequence is shorter."""

    def __init__(self, distance=1, strength=1.0, **kwargs):
        super().__init__(**kwargs)
        self.distance = distance
        self.strength = strength

    def call(self, x):
        length = ops.shape(x)[1]
        exists = ops.cast(ops.arange(length) + self.distance < length, x.dtype)[:, None]
        return x + self.strength * exists * ops.roll(x, -self.distance, axis=1)


class BestTokens(layers.Layer):
    """Adds to each of the `count` best scored tokens of the whole sequence the mean of those up to it.

    Inside, everything is masked causally: only who is among the best depends on later tokens, and has no gradient.
    """

    def __init__(self, count=4, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def call(self, x):
        scores = ops.stop_gradient(ops.sum(x, axis=-1))
        least = ops.min(ops.top_k(scores, self.count)[0], axis=-1, keepdims=True)
        member = ops.cast(scores >= least, x.dtype)[..., None]
        return x + member * ops.cumsum(member * x, axis=1) / (ops.cumsum(member, axis=1) + 1)


class RoundingAhead(layers.Layer):
    """y = x, but later inputs move the last bits: adds many times the sequence's mean and takes it away again."""

    def call(self, x):
        shift = ops.stop_gradient(ops.mean(x, axis=1, keepdims=True) / 0.0007)
        return (x + shift) - shift


class Tracker(layers.Layer):
    """Causal; with `training=True` drops values, counts calls, averages its inputs and adds a loss."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dropout = layers.Dropout(0.5, seed=3)

    def build(self, shape):
        self.average = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="average")
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            mean = ops.mean(x, axis=(0, 1))
            self.average.assign(0.9 * self.average + 0.1 * ops.stop_gradient(mean))
            self.calls.assign(self.calls + 1)
            self.add_loss(ops.sum(mean))
        return self.dropout(x, training=training) + x


def attention(causal=True, **kwargs):
    """A function of a tensor: self-attention with a causal mask or without one."""
    layer = layers.MultiHeadAttention(2, 4, **kwargs)
    return lambda x: layer(x, x, use_causal_mask=causal)


def language_model(*parts, dropout=0.0, length=None, **embedding):
    """From token ids to logits: an embedding, the parts (functions of a tensor), a dense layer."""
    ids = keras.Input((length,), dtype="int32")
    x = layers.Embedding(11, 8, name="tokens", **embedding)(ids)
    for part in parts:
        x = layers.Dropout(dropout)(x + part(x))
    return keras.Model(ids, layers.Dense(11, name="logits")(x))


class SubclassedModel(keras.Model):
    """Token ids to {"logits", "hidden"}, with a learned table of positions."""

    def __init__(self, max_length=64, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.ReversibleEmbedding(11, 8)
        self.positions = layers.Embedding(max_length, 8)
        self.attention = layers.MultiHeadAttention(2, 4)

    def call(self, ids):
        x = self.tokens(ids) + self.positions(ops.arange(ids.shape[1]))
        x = x + self.attention(x, x, use_causal_mask=True)
        return {"logits": self.tokens(x, reverse=True), "hidden": x}


def dictionary_model():
    """Take {"token_ids", "padding_mask"}, as KerasHub's backbones do."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="int32", name="padding_mask")
    x = layers.Embedding(11, 8)(ids)
    x = layers.MultiHeadAttention(2, 4)(x, x, attention_mask=ops.cast(mask, "bool")[:, None], use_causal_mask=True)
    return keras.Model({"token_ids": ids, "padding_mask": mask}, x)


# Built when called; the sequences of the tests have 12 positions.
CAUSAL = {
    "attention": lambda: layers.MultiHeadAttention(2, 4),
    "convolutions": lambda: keras.Sequential([layers.Conv1D(4, 3, padding="causal") for _ in range(2)]),
    "recurrent": lambda: layers.GRU(4, return_sequences=True),
    "dense": lambda: layers.Dense(4),
    "embedding": lambda: layers.Embedding(5, 4),
    "normalised": lambda: layers.LayerNormalization(),
    "language_model": lambda: language_model(attention(), attention()),
    "fixed_length": lambda: language_model(attention(), length=7),
    "subclassed": SubclassedModel,
    "dictionary": dictionary_model,
}
LOOKING_AHEAD = {
    "attention": lambda: language_model(attention(causal=False)),
    "shift": Ahead,
    "convolution": lambda: layers.Conv1D(4, 3, padding="same"),
    "later_inputs_alone": lambda: lambda x: ops.pad(x[:, 1:], [[0, 0], [0, 1], [0, 0]]),
}
