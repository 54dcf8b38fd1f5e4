"""Attention layers inside models: compiled, saved, trained, with shapes known and unknown."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.contracts import CLOSE, SIZE, assert_close, built, every_layer, normal, to_numpy

pytestmark = pytest.mark.filterwarnings("ignore:.* under a causal mask is not causal:UserWarning")


def model_of(maker, layer, length=None):
    inputs = keras.Input((length, SIZE))
    return keras.Model(inputs, layer(inputs, use_causal_mask=maker.causal))


@every_layer(slow=True)
def test_a_graph_of_unknown_batch_and_length_equals_eager(maker):
    layer = built(maker)
    signature = [tf.TensorSpec((None, None, SIZE)), tf.TensorSpec((None, None), "bool")]
    graph = tf.function(lambda x, mask: maker.call_tensor(layer, x, query_mask=mask), input_signature=signature)
    for length in (3, 13):
        x, mask = normal(2, length, SIZE), np.arange(length) < np.array([[length], [2]])
        assert_close(graph(x, mask), maker.call(layer, x, query_mask=mask))


@every_layer(slow=True)
def test_xla_equals_eager(maker):
    layer, x = built(maker), normal(2, 13, SIZE)
    mask = np.arange(13) < np.array([[13], [8]])
    compiled = tf.function(lambda x: maker.call_tensor(layer, x, query_mask=mask), jit_compile=True)
    # XLA fuses sums of products and orders them as it likes.
    assert_close(compiled(x), maker.call(layer, x, query_mask=mask), CLOSE)


@every_layer()
def test_a_saved_model_is_the_same_when_loaded_in_safe_mode(maker, tmp_path):
    layer, x = built(maker, dropout=0.1), normal(2, 13, SIZE)
    model = model_of(maker, layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert_close(loaded(x), maker.call(layer, x), 0)


@every_layer(slowest=True)
def test_known_lengths_sequential_and_subclassed_models_agree(maker):
    layer, x = built(maker), normal(2, 13, SIZE)

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def call(self, x):
            return self.attention(x, use_causal_mask=maker.causal)

    expected = maker.call(layer, x)
    for model in (model_of(maker, layer), model_of(maker, layer, 13), Subclassed()):
        assert_close(model.predict(x, verbose=0), expected, CLOSE)
    sequential = keras.Sequential([keras.Input((None, SIZE)), layer])
    assert_close(sequential.predict(x, verbose=0), to_numpy(layer(x)), CLOSE)


@every_layer(slowest=True)
def test_training_is_the_same_eager_and_in_a_graph(maker):
    results = [train(maker, run_eagerly=eager, jit_compile=False) for eager in (True, False)]
    assert_same_training(*results)


@every_layer(slowest=True)
def test_training_is_the_same_in_a_graph_and_under_xla(maker):
    results = [train(maker, jit_compile=jit) for jit in (False, True)]
    assert_same_training(*results)


def train(maker, **compilation):
    """Returns the losses of three steps of `fit` and the weights and state after them."""
    layer = built(maker)
    model = model_of(maker, layer)
    model.compile(keras.optimizers.SGD(0.01), "mse", **compilation)
    x, y = normal(6, 13, SIZE), normal(6, 13, SIZE, seed=1)
    history = model.fit(x, y, batch_size=2, epochs=1, shuffle=False, verbose=0)
    return history.history["loss"], layer.get_weights()


def assert_same_training(first, second):
    assert_close(first[0], second[0], 1e-5)
    for a, b in zip(first[1], second[1], strict=True):
        assert_close(a, b, 1e-5)


@every_layer(slow=True)
def test_symbolic_shapes_and_dtypes_are_the_real_ones(maker):
    for common, shape in ({}, (2, 7, SIZE)), ({"output_shape": 5}, (2, 7, 5)), ({"output_shape": (3, 2)}, (2, 7, 3, 2)):
        layer, x = maker.make(value_dim=3, use_bias=False, **common), normal(2, 7, SIZE)
        symbolic = layer(keras.Input((7, SIZE), batch_size=2), return_attention_scores=True)
        output, weights = layer(x, use_causal_mask=maker.causal, return_attention_scores=True)
        assert symbolic[0].shape == output.shape == layer.compute_output_shape((2, 7, SIZE)) == shape
        assert symbolic[1].shape == weights.shape == (2, layer.num_heads, 7, 7)
        assert not any("bias" in weight.name for weight in layer.trainable_weights)
        unknown = layer(keras.Input((None, SIZE)))
        assert unknown.shape == (None, None, *shape[2:]) and layer.compute_output_shape(x.shape) == shape


@every_layer(slow=True, crosses=True)
def test_symbolic_shapes_of_a_cross_attention_are_the_real_ones(maker):
    query, value = normal(2, 7, SIZE), normal(2, 5, 3)
    layer = maker.make()
    symbolic = layer(keras.Input((7, SIZE)), keras.Input((5, 3)), return_attention_scores=True)
    real = maker.call(layer, query, value, return_attention_scores=True)
    assert [x.shape[1:] for x in symbolic] == [x.shape[1:] for x in real]
