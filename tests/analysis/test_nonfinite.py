"""Where numbers of a model stop being finite."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.analysis import find_nonfinite


@pytest.fixture(scope="module")
def dense():
    """Three layers: the second one divides by its inputs' sum."""

    @keras.saving.register_keras_serializable()
    class Divide(keras.layers.Layer):
        def call(self, x):
            return x / ops.sum(x, axis=-1, keepdims=True)

    layers = [keras.layers.Dense(2, name="first"), Divide(name="divide"), keras.layers.Dense(1, name="last")]
    model = keras.Sequential(layers)
    model.build((None, 2))
    model.compile("sgd", loss="mse")
    return model


@pytest.fixture
def model(dense):
    dense.set_weights([np.ones_like(weight) for weight in dense.get_weights()])
    return dense


ONES = np.ones((1, 2), "float32")


def test_the_first_layer_with_such_weights_is_named(model):
    for layer in model.layers[::2]:
        layer.bias.assign(np.full(layer.bias.shape, np.nan))
    found = find_nonfinite(model, ONES)
    assert (found.kind, found.layer.split("/")[-1], found.count, found.size) == ("weights", "first", 2, 2)
    assert found.weight.endswith("first/bias")


def test_the_layer_whose_output_is_not_finite_is_named_and_not_those_after_it(model):
    found = find_nonfinite(model, np.float32([[1, -3]]))  # 1 - 3 + 1 = -1, twice; a sum of 0 comes of biases of -1
    assert found is None
    model.layers[0].bias.assign([1.0, 3.0])
    found = find_nonfinite(model, np.float32([[1, -3]]))
    assert str(found).endswith("divide: 2 of 2 values are NaN or infinite") and str(found).startswith("output of lay")


def test_inputs_and_losses_are_told_from_layers(model):
    assert find_nonfinite(model, ONES * np.inf).kind == "inputs"
    found = find_nonfinite(model, ONES, np.full((1, 1), np.inf, "float32"))
    assert (found.kind, found.layer) == ("loss", None)


@keras.saving.register_keras_serializable()
class Root(keras.layers.Layer):
    """The root, whose derivative is infinite at 0."""

    def call(self, x):
        return ops.sqrt(x - x)


def test_gradients_are_looked_at_from_the_last_layer_to_the_first():
    layers = [keras.layers.Dense(1, name="a"), keras.layers.Dense(1, name="b"), Root(), keras.layers.Dense(1, name="c")]
    model = keras.Sequential(layers)
    model.build((None, 2))
    found = find_nonfinite(model, ONES)
    assert (found.kind, found.layer.split("/")[-1]) == ("gradients", "b")


def test_a_layer_inside_of_a_language_model_is_named():
    part = {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 4, "num_clusters": 2, "cluster_size": 4}
    model = tsa.models.LanguageModel(tsa.models.Backbone(8, 2, 4, [part], seed=0))
    ids = np.arange(8)[None]
    model.compile("sgd", loss=tsa.models.language_model_loss())
    before = [ops.convert_to_numpy(variable) for variable in model.variables]
    assert find_nonfinite(model, ids, ids, training=True) is None
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    kernel = next(weight for weight in model.weights if "block_1/attention/routing_0/query" in weight.path)
    kernel.assign(ops.full(kernel.shape, np.inf))
    assert re.match("weights of layer .*block_1/attention/routing_0/query", str(find_nonfinite(model, ids)))


def test_what_cannot_be_looked_at_is_an_error(model):
    with pytest.raises(ValueError, match="`model`"):
        find_nonfinite(3, ONES)
    with pytest.raises(ValueError, match="`targets`"):
        find_nonfinite(tsa.layers.FeedForward(4), ONES, ONES)
