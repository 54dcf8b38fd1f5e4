"""Dense Keras models with attention wherever a model can hold it."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.convert import arguments_of
from tf_sparse_attention.layers import LocalAttention, MixedAttention, RoutingAttention

LENGTH, VOCABULARY = 12, 30


def local(window=LENGTH):
    return lambda dense: LocalAttention(**arguments_of(dense), window=window)


def blocks(dense):
    return LocalAttention(**arguments_of(dense), block_size=4)


def routed(dense):
    return RoutingAttention(**arguments_of(dense), num_clusters=2, cluster_size=4, share_qk=False)


def mixed(dense):
    arguments = {**arguments_of(dense), "num_heads": dense.num_heads // 2}
    routing = RoutingAttention(**{**arguments, "name": "far"}, num_clusters=2, cluster_size=4, share_qk=False)
    return MixedAttention([LocalAttention(**{**arguments, "name": "near"}, window=4), routing])


def ids(batch=2, length=LENGTH, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, (batch, length))


def randomized(model, seed=0):
    """Return the model with random trainable weights, also where layers start with zeros or ones."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    return model


def transformer(use_causal_mask=False, num_layers=2, **options):
    """A functional model with attention as nodes of its graph, padding recognised by id 0."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 16, mask_zero=True)(inputs)
    for index in range(num_layers):
        attention = keras.layers.MultiHeadAttention(2, 8, name=f"attention_{index}", **options)
        x = keras.layers.Add()([x, attention(x, x, use_causal_mask=use_causal_mask)])
        x = keras.layers.LayerNormalization()(x)
        x = keras.layers.Add()([x, keras.layers.Dense(16)(keras.layers.Dense(32, activation="relu")(x))])
    return randomized(keras.Model(inputs, keras.layers.Dense(VOCABULARY)(x)))


@keras.saving.register_keras_serializable(package="tests")
class Block(keras.layers.Layer):
    """A block that makes its attention itself, as most people write one."""

    def __init__(self, num_heads=2, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.attention = keras.layers.MultiHeadAttention(num_heads, 8)
        self.norm = keras.layers.LayerNormalization()

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        self.norm.build(input_shape)

    def call(self, x, training=None):
        return self.norm(x + self.attention(x, x, use_causal_mask=True, training=training))

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="tests")
class Classifier(keras.Model):
    """A subclassed model with a list of blocks, one of them twice, and attention in a dictionary and a nested tuple."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        block = Block()
        self.embedding = keras.layers.Embedding(VOCABULARY, 16)
        self.blocks = [block, Block(), block]
        self.pools = {"last": keras.layers.MultiHeadAttention(2, 8)}
        self.more = [(keras.layers.MultiHeadAttention(2, 8), keras.layers.Dense(3))]

    def build(self, input_shape):
        self.embedding.build(input_shape)
        shape = (*input_shape, 16)
        for block in self.blocks:
            if not block.built:
                block.build(shape)
        for attention in (self.pools["last"], self.more[0][0]):
            attention.build(shape, shape)
        self.more[0][1].build(shape)
        self.built = True

    def call(self, inputs):
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x)
        for attention in (self.pools["last"], self.more[0][0]):
            x = x + attention(query=x, value=x)
        return self.more[0][1](ops.mean(x, axis=1))


def difference(one, other):
    """Return the largest difference of two results, tensors or dictionaries of them."""
    if isinstance(one, dict):
        return max(difference(one[name], other[name]) for name in one)
    return float(np.abs(ops.convert_to_numpy(one) - ops.convert_to_numpy(other)).max())
