"""Where layers are held in a model, how they are replaced, and models that save what was replaced."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.layers import LocalAttention, SwappedAttention
from tf_sparse_attention.models import SwappedModel
from tf_sparse_attention.models.layer_sites import find_layer_sites
from tf_sparse_attention.models.swapped_model import swap, wrap_for_saving


@keras.saving.register_keras_serializable(package="tests")
class Holder(keras.layers.Layer):
    """A layer with one dense attention, held twice, and others in containers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="dense")
        self.again = self.attention
        self.pair = (keras.layers.Dense(8), keras.layers.Dense(8))
        self.table = {"row": keras.layers.Dense(8)}

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        for layer in (*self.pair, self.table["row"]):
            layer.build(input_shape)

    def call(self, x):
        return self.table["row"](self.attention(x, x))


def make_model():
    inputs = keras.Input((6, 8))
    return keras.Model(inputs, Holder(name="holder")(inputs))


def swapped_attention(dense):
    layer = LocalAttention(2, 4, window=6)
    layer.copy_projections(dense)
    return SwappedAttention(layer, name=dense.name)


def swapped_model():
    """Return a model whose dense attention is replaced at all its sites, the dense and the new layer."""
    model = make_model()
    dense = model.get_layer("holder").attention
    new = swapped_attention(dense)
    for site in find_layer_sites(model):
        if site.layer is dense:
            swap(site, new)
    return model, dense, new


def test_every_layer_has_its_path():
    paths = {site.path for site in find_layer_sites(make_model())}
    assert {"holder", "holder.attention", "holder.again", "holder.pair[0]", "holder.table['row']"} <= paths


def test_keras_forgets_the_layer_that_is_replaced():
    model, dense, new = swapped_model()
    holder = model.get_layer("holder")
    assert holder.attention is new and holder.again is new
    assert not {id(weight) for weight in dense.weights} & {id(weight) for weight in model.weights}
    assert {id(weight) for weight in new.weights} <= {id(weight) for weight in model.trainable_weights}
    with pytest.raises(ValueError, match="cannot add new elements of state"):  # locked again
        holder.more = keras.layers.Dense(3)


@pytest.mark.parametrize("path", ["holder.pair[1]", "holder.table['row']"])
def test_layers_in_containers_are_replaced(path):
    model = make_model()
    site = next(site for site in find_layer_sites(model) if site.path == path)
    new = keras.layers.Dense(8, name="new")
    new.build((None, 6, 8))
    site.replace(new)
    assert next(site.layer for site in find_layer_sites(model) if site.path == path) is new
    assert any("new" in weight.path for weight in model.weights)
    assert len(model.weights) == 8 + 3 * 2


def test_nodes_of_a_graph_cannot_be_replaced():
    model = make_model()
    site = next(site for site in find_layer_sites(model) if site.path == "holder")
    with pytest.raises(ValueError, match="`layer`"):
        site.replace(keras.layers.Dense(8))


def test_a_wrapped_model_keeps_its_class_and_can_be_cloned():
    model, _, _ = swapped_model()
    kind = type(model)
    assert wrap_for_saving(model) is model and wrap_for_saving(model) is model
    assert isinstance(model, kind) and isinstance(model, SwappedModel)
    other = type(model).from_config(model.get_config())
    other.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    np.testing.assert_array_equal(model(x), other(x))


def test_an_unknown_path_is_refused():
    model = make_model()
    config = {"model": keras.saving.serialize_keras_object(model), "attention": {"holder.attentoin": {}}, "omitted": {}}
    with pytest.raises(ValueError, match="`config`"):
        SwappedModel.from_config(config)
