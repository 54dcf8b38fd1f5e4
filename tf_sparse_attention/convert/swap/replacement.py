"""The replacement of attention in one model: its copy, the new layers, and what became of each dense one."""

import tempfile

import keras

from tf_sparse_attention.convert.swap.dense_attention import (
    is_sparse,
    looks_like_attention,
    own_window,
    reason_against,
    with_window,
)
from tf_sparse_attention.convert.weights import zeros_at_first
from tf_sparse_attention.layers.swapped_attention import SwappedAttention
from tf_sparse_attention.models.layer_sites import places_of
from tf_sparse_attention.models.swapped_model import marked, swap

TO_OTHERS = "it attends to another sequence"
DECLINED = "make_layer returned None"


class Replacement:
    """One replacement of dense attention by sparse layers.

    Args:
        make_layer: function of a dense attention layer that returns a new layer or None.
        causal: whether to tell every new layer that later positions are hidden.

    Attributes:
        replaced: by address, the names of the classes of the dense and the new layer, and remarks, as text.
        left: by address, pairs of the name of the class and the reason.
    """

    def __init__(self, make_layer, causal):
        self.make_layer = make_layer
        self.causal = causal
        self.replaced = {}
        self.left = {}
        self.given = {}  # by id, what make_layer has returned

    def report(self):
        """Returns a line for each attention, as text."""
        lines = []
        for address, (old, new, *remarks) in self.replaced.items():
            lines.append("; ".join([f"replaced  {address}: {old} by {new}", *remarks]))
        lines += [f"left      {address}: {old}, {reason}" for address, (old, reason) in self.left.items()]
        return "\n".join(lines or ["no attention found"])

    def note_left(self, address, layer, reason):
        """Notes an attention that has no new layer, and why."""
        self.left[address] = type(layer).__name__, reason

    def copy_of(self, model, address=""):
        """Returns a copy of a model; where that is a plain graph, attention layers that are its nodes are replaced."""
        if not _is_plain_graph(model):
            return _remade(model)
        return _GraphCopy(self, model, address).make()

    def sparse_layer(self, address, dense):
        """Returns the new layer for a dense one, with its weights, and notes it; None where there is none."""
        reason = reason_against(dense)
        layer = None if reason else self.make_layer(dense)
        if layer is None:
            self.note_left(address, dense, reason or DECLINED)
            return None
        if id(layer) in self.given:
            raise ValueError(
                f"`make_layer` must return a new layer each time. Received: {layer.name} again, for {address}."
            )
        self.given[id(layer)] = layer
        if not is_sparse(layer):
            raise ValueError(
                "`make_layer` must return an attention layer of this library or None. "
                f"Received: {layer!r} for {address}."
            )
        remarks = []
        if own_window(dense) is not None:
            layer, remarks = with_window(layer, own_window(dense))
        try:
            layer.copy_projections(dense)
        except ValueError as error:
            raise ValueError(
                f"`make_layer` must return a layer that fits {address}: `arguments_of(attention)` has what both need, "
                f"and layers whose queries serve as keys want `share_qk=False`. {error}"
            ) from error
        layer.trainable = dense.trainable
        self.replaced[address] = type(dense).__name__, type(layer).__name__, *remarks
        return layer

    def sublayers_swapped(self, model):
        """Returns the model itself, with new layers where dense ones stood inside of others."""
        known = {**self.replaced, **self.left}
        places, by_dense = places_of(model), {}
        for place in places:
            if place.address in known or not isinstance(place.layer, keras.layers.MultiHeadAttention):
                continue
            if place.attribute is None:
                self.note_left(place.address, place.layer, f"it is a node of a {type(place.parent).__name__}")
            elif _attends_to_others(place):
                self.note_left(place.address, place.layer, TO_OTHERS)
            else:
                self._swap(place, by_dense)
        self._note_others(places)
        return marked(model) if by_dense else model

    def _swap(self, place, by_dense):
        """Puts a new layer into a place; the same one wherever the same dense layer stands."""
        dense = place.layer
        if id(dense) not in by_dense:
            layer = self.sparse_layer(place.address, dense)
            swapped = layer and SwappedAttention(
                layer, self.causal, name=dense.name, dtype=dense.dtype_policy, trainable=dense.trainable
            )
            by_dense[id(dense)] = swapped, self.replaced.get(place.address)
        swapped, said = by_dense[id(dense)]
        if swapped is not None:
            swap(place, swapped)
            self.replaced[place.address] = said

    def _note_others(self, places):
        """Notes layers that call themselves attention and have nothing in them that can be replaced."""
        known = [*self.replaced, *self.left]
        for place in places:
            inside = any(address.startswith(f"{place.address}.") for address in known)
            if looks_like_attention(place.layer) and place.address not in known and not inside:
                self.note_left(place.address, place.layer, reason_against(place.layer))
                known.append(place.address)


class _GraphCopy:
    """A copy of a functional or Sequential model whose nodes of attention are replaced."""

    def __init__(self, replacement, model, address):
        self.replacement = replacement
        self.model = model
        self.address = address
        self.pairs = []  # of a layer and its copy
        self.dense = {}  # by id of the copy, pair of the dense layer and its new layer, once it is known

    def make(self):
        sequential = isinstance(self.model, keras.Sequential)
        call = {} if sequential else {"call_function": self._call}
        copy = keras.models.clone_model(self.model, clone_function=self._copy_layer, **call)
        for old, new in self.pairs:
            if new.built:  # the copy of attention that was replaced is not
                _give_state(old, new)
        return copy

    def _copy_layer(self, layer):
        if _is_plain_graph(layer):
            return self.replacement.copy_of(layer, f"{self.address}{layer.name}.")
        copy = type(layer).from_config(layer.get_config())
        if isinstance(layer, keras.layers.MultiHeadAttention):
            self.dense[id(copy)] = [layer, copy]
        if isinstance(layer, keras.layers.Layer):  # additions and the like are operations without weights
            self.pairs.append((layer, copy))
        return copy

    def _call(self, layer, *args, **kwargs):
        """Calls the copy of a layer, or in place of a dense attention the new layer."""
        if id(layer) not in self.dense:
            with zeros_at_first():  # it gets the weights of the layer that it is a copy of
                return layer(*args, **kwargs)
        dense, new = self.dense[id(layer)]
        address = f"{self.address}{dense.name}"
        given = dict(zip(("query", "value", "key"), args, strict=False)) | kwargs
        others = any(given.get(name) is not given["query"] for name in ("value", "key") if given.get(name) is not None)
        if others and is_sparse(new):
            raise ValueError(
                f"`make_layer` must return None for {address}: one of its calls attends to another sequence."
            )
        if others:
            self.replacement.note_left(address, dense, TO_OTHERS)
        elif address not in self.replacement.replaced and address not in self.replacement.left:
            self.dense[id(layer)][1] = new = self.replacement.sparse_layer(address, dense) or layer
        if not is_sparse(new):
            return new(*args, **kwargs)
        if self.replacement.causal:
            kwargs["use_causal_mask"] = True
        if kwargs.get("use_causal_mask") and not new.can_be_causal:
            raise ValueError(f"`make_layer` must return a layer that can be causal for {address}. Received: {new!r}.")
        if kwargs.get("attention_mask") is not None:  # Keras takes numbers too
            kwargs["attention_mask"] = keras.ops.cast(kwargs["attention_mask"], "bool")
        return new(*args, **kwargs)


def _is_plain_graph(model):
    """Whether a model is made of its graph alone, so that a copy of the graph is a copy of the model."""
    if isinstance(model, keras.Sequential):
        return type(model).get_config is keras.Sequential.get_config
    if not isinstance(model, keras.Function):
        return False
    x = keras.Input((1,))
    functional = type(keras.Model(x, x))
    return type(model).get_config is functional.get_config and type(model).__init__ is functional.__init__


def _remade(model):
    """Returns a new model of the same class, config and weights."""
    try:
        with zeros_at_first():
            copy = type(model).from_config(model.get_config())
            if not copy.built:
                copy.build_from_config(model.get_build_config())
    except Exception as error:  # whatever the model's own class raises
        raise ValueError(
            f"`model` must be one that its config can make anew; {type(model).__name__} is not: {error} "
            "Give the class a `get_config`, or pass the functional model `keras.Model(inputs, outputs)`."
        ) from error
    _give_state(model, copy)
    return copy


def _give_state(old, new):
    """Gives a layer and all layers in it the variables and assets of the one that it is a copy of."""
    shapes = [[tuple(weight.shape) for weight in layer.weights] for layer in (old, new)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"`model` must be one that its config can make anew; the copy of {old.name}, a {type(old).__name__}, has "
            f"weights of shapes {shapes[1]}, not {shapes[0]}."
        )
    copies = {"": new, **{place.route: place.layer for place in places_of(new)}}
    for route, layer in [("", old), *((place.route, place.layer) for place in places_of(old))]:
        if route in copies:
            _give_own_state(layer, copies[route])
        elif layer.weights:  # those of preprocessing that come with the first call have none
            raise ValueError(f"`model` must be one that its config can make anew; the copy has no {layer.name}.")


def _give_own_state(old, new):
    variables = {}
    old.save_own_variables(variables)
    if variables:
        new.load_own_variables(variables)
    if new.trainable != old.trainable:
        new.trainable = old.trainable
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)


def _attends_to_others(place):
    """Whether a dense attention inside another layer is between two sequences, as far as names and sizes tell."""
    if "cross" in f"{place.attribute} {place.layer.name}".lower():
        return True
    if reason_against(place.layer):
        return False
    sizes = {p.kernel.shape[0] for p in (place.layer.query_dense, place.layer.value_dense, place.layer.key_dense)}
    return len(sizes) > 1
