"""The checks that Keras runs on each of its layers, for every public layer: config, shapes, dtypes, a training step."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from tests.cases import CASES, OF_EACH_CLASS, dense
from tests.draws import first, is_full
from tf_sparse_attention import layers

SHAPE = (2, 12, 8)
# Public layers that are not attention layers, by name: functions of the arguments of every Keras layer.
OTHER_LAYERS = {
    "AdaptiveEmbedding": lambda **common: layers.AdaptiveEmbedding(11, 8, cutoffs=(4,), div_value=2, **common),
    "AdaptiveSoftmax": lambda **common: layers.AdaptiveSoftmax(vocabulary_size=11, cutoffs=(4,), div_value=2, **common),
    "FeedForward": lambda **common: layers.FeedForward(16, **common),
    "FrameSubsampling": lambda **common: layers.FrameSubsampling(2, 6, **common),
    "GridEmbedding": lambda **common: layers.GridEmbedding((3, 4), **common),
    "SinusoidalEmbedding": lambda **common: layers.SinusoidalEmbedding(**common),
    "SoftmaxFeedForward": lambda **common: layers.SoftmaxFeedForward(16, **common),
    "TransformerBlock": lambda **common: layers.TransformerBlock(
        layers.LocalAttention(2, 4, window=4, **common), layers.FeedForward(16, **common), **common
    ),
}
ATTENTION = {name: (CASES[name].make, {"use_causal_mask": CASES[name].causal}) for name in OF_EACH_CLASS}
LAYERS = {**ATTENTION, "dense": (dense, {}), **{name: (make, {}) for name, make in OTHER_LAYERS.items()}}
ABSTRACT = {"AttentionLayer", "SwappedAttention"}  # replaced layers are made from a dense layer


def example(make):
    """Return the input of a layer, token ids for embeddings."""
    ids = make is OTHER_LAYERS["AdaptiveEmbedding"]
    return np.arange(24).reshape(2, 12) % 11 if ids else np.random.default_rng(0).normal(size=SHAPE).astype("float32")


def counts(layer):
    """Return the numbers of weights of a layer."""
    return [len(x) for x in (layer.trainable_weights, layer.non_trainable_weights, layer.non_trainable_variables)]


def test_every_public_layer_is_checked():
    checked = {type(make()).__name__ for make, _ in LAYERS.values()}
    assert checked == set(layers.__all__) - ABSTRACT


@pytest.mark.parametrize("name", LAYERS)
def test_a_config_gives_an_equal_layer_with_the_same_attributes(name):
    layer = LAYERS[name][0]()
    config = layer.get_config()
    for copy in (
        type(layer).from_config(config),
        keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))),
    ):
        assert copy.get_config() == config and set(dir(copy)) == set(dir(layer))


@pytest.mark.parametrize("name", first(list(LAYERS), 1))
def test_a_layer_is_built_by_shapes_symbols_and_arrays_and_trained_by_fit(name):
    make, arguments = LAYERS[name]
    x, (by_shape, by_symbol, by_array) = example(make), (make() for _ in range(3))
    by_shape.build(x.shape)
    symbol = by_symbol(keras.KerasTensor(x.shape, x.dtype), **arguments)
    output = by_array(x, **arguments)
    assert by_shape.built and counts(by_shape) == counts(by_symbol) == counts(by_array)
    assert by_shape.supports_masking or name == "AdaptiveEmbedding"  # ids have no mask, as in keras.layers.Embedding
    assert (symbol.shape, symbol.dtype) == (output.shape, keras.backend.standardize_dtype(output.dtype))
    inputs = keras.Input(x.shape[1:], dtype=x.dtype)
    model = keras.Model(inputs, keras.layers.Dense(1)(by_array(inputs, **arguments)))
    loss, jit_compile = lambda _, y: ops.mean(y, axis=tuple(range(1, len(y.shape)))), "auto" if is_full() else False
    model.compile("sgd", loss, jit_compile=jit_compile)
    assert np.isfinite(model.fit(x, np.zeros(2), verbose=0).history["loss"]).all()


# Attention layers in `test_contract_dtypes.py`.
@pytest.mark.parametrize("name", ["dense", *OTHER_LAYERS])
def test_mixed_precision_has_float32_weights_and_float16_outputs(name):
    make, arguments = LAYERS[name]
    layer, x = make(dtype="mixed_float16"), example(make)
    x = x if x.dtype.kind == "i" else x.astype("float16")
    output, spec = layer(x, **arguments), layer.compute_output_spec(keras.KerasTensor(x.shape, x.dtype), **arguments)
    assert keras.backend.standardize_dtype(output.dtype) == spec.dtype
    assert {weight.dtype for weight in layer.weights if "float" in weight.dtype} <= {"float32"}
