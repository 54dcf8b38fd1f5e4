"""The places in a model where a layer stands, and putting another one there."""

import dataclasses
from typing import Any

import keras

# Where Keras and TensorFlow keep what attributes hold, once more.
KERAS_OWN = {"_layers", "_operations", "_functional", "_metrics", "_tracker", "_inbound_nodes", "_outbound_nodes"}
TENSORFLOW_OWN = {"_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a layer stands.

    Attributes:
        address: names and attributes from the model down, such as "transformer_layer_0._self_attention_layer".
        layer: the layer that stands there.
        parent: the layer that holds it.
        attribute: the parent's attribute; None for a node of the graph of a functional model.
        key: index or key, where the attribute is a list, tuple or dictionary.
    """

    address: str
    layer: keras.layers.Layer
    parent: keras.layers.Layer
    attribute: str | None = None
    key: Any = None

    def put(self, layer):
        """Lets another layer stand here, and makes Keras forget the one that did.

        Keras allows no new layers in one that is built; its tracker is opened for this moment.
        """
        if self.attribute is None:
            raise ValueError(f"`layer` cannot be put into the graph of {self.parent.name}. Received: {layer!r}.")
        tracker = self.parent._tracker
        locked = tracker.locked
        tracker.unlock()
        try:
            self._put(layer, tracker)
        finally:
            if locked:
                tracker.lock()

    def _put(self, layer, tracker):
        held = getattr(self.parent, self.attribute)
        tracker.untrack(self.layer)
        if isinstance(held, list | dict):
            held[self.key] = tracker.track(layer)
        else:
            new = tuple(layer if x is self.layer else x for x in held) if isinstance(held, tuple) else layer
            setattr(self.parent, self.attribute, new)


def places_of(model):
    """Returns the places of all layers inside a model or layer, outermost first, each as often as it is held."""
    found, seen, waiting = [], {id(model)}, [(model, "")]
    while waiting:
        parent, address = waiting.pop(0)
        for place in _held_by(parent, address):
            found.append(place)
            if id(place.layer) not in seen:
                seen.add(id(place.layer))
                waiting.append((place.layer, f"{place.address}."))
    return found


def _held_by(parent, address):
    nodes = parent.layers if isinstance(parent, keras.Function | keras.Sequential) else []
    for layer in nodes:
        yield Place(address + layer.name, layer, parent)
    graph = {id(layer) for layer in nodes}
    for attribute, value in vars(parent).items():
        if attribute in KERAS_OWN | TENSORFLOW_OWN:
            continue
        for key, layer in _members(value):
            if isinstance(layer, keras.layers.Layer) and id(layer) not in graph:
                step = attribute if key is None else f"{attribute}[{key!r}]"
                yield Place(address + step, layer, parent, attribute, key)


def _members(value):
    """Returns pairs of a key and a layer: a lone layer has the key None."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else [(None, value)]
