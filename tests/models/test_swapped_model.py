"""Where layers stand in a model, what is put there, and models that save what was put into them."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.layers import LocalAttention, SwappedAttention
from tf_sparse_attention.models import SwappedModel
from tf_sparse_attention.models.layer_sites import places_of
from tf_sparse_attention.models.swapped_model import marked, swap


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
    """Returns a model whose dense attention is replaced wherever it stands, the dense and the new layer."""
    model = make_model()
    dense = model.get_layer("holder").attention
    new = swapped_attention(dense)
    for place in places_of(model):
        if place.layer is dense:
            swap(place, new)
    return model, dense, new


def test_every_layer_has_its_address():
    places = {place.address for place in places_of(make_model())}
    assert {"holder", "holder.attention", "holder.again", "holder.pair[0]", "holder.table['row']"} <= places


def test_keras_forgets_the_layer_that_stood_there():
    model, dense, new = swapped_model()
    holder = model.get_layer("holder")
    assert holder.attention is new and holder.again is new
    assert not {id(weight) for weight in dense.weights} & {id(weight) for weight in model.weights}
    assert {id(weight) for weight in new.weights} <= {id(weight) for weight in model.trainable_weights}
    with pytest.raises(ValueError, match="cannot add new elements of state"):  # locked again
        holder.more = keras.layers.Dense(3)


@pytest.mark.parametrize("address", ["holder.pair[1]", "holder.table['row']"])
def test_layers_in_containers_are_put_there(address):
    model = make_model()
    place = next(place for place in places_of(model) if place.address == address)
    new = keras.layers.Dense(8, name="new")
    new.build((None, 6, 8))
    place.put(new)
    assert next(place.layer for place in places_of(model) if place.address == address) is new
    assert any("new" in weight.path for weight in model.weights)
    assert len(model.weights) == 8 + 3 * 2


def test_nodes_of_a_graph_cannot_be_put():
    model = make_model()
    place = next(place for place in places_of(model) if place.address == "holder")
    with pytest.raises(ValueError, match="`layer` cannot be put into the graph of"):
        place.put(keras.layers.Dense(8))


def test_a_marked_model_is_what_it_was_and_can_be_cloned():
    model, _, _ = swapped_model()
    kind = type(model)
    assert marked(model) is model and marked(model) is model
    assert isinstance(model, kind) and isinstance(model, SwappedModel)
    other = type(model).from_config(model.get_config())
    other.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    np.testing.assert_array_equal(model(x), other(x))


def test_an_unknown_address_is_refused():
    model = make_model()
    config = {"model": keras.saving.serialize_keras_object(model), "attention": {"holder.attentoin": {}}}
    with pytest.raises(
        ValueError, match=r"`config` must name layers of the Functional in it. .*\['holder.attentoin'\]"
    ):
        SwappedModel.from_config(config)
