"""The places in a model where a layer stands, and putting another one there."""

import dataclasses

import keras

# Where Keras and TensorFlow keep what attributes hold, once more.
KERAS_OWN = {"_layers", "_operations", "_functional", "_metrics", "_tracker", "_inbound_nodes", "_outbound_nodes"}
TENSORFLOW_OWN = {"_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a layer stands.

    Attributes:
        address: names and attributes from the model down, such as "transformer_layer_0._self_attention_layer".
        route: the same with numbers for the layers of a graph, whose names may be others in a copy.
        layer: the layer that stands there.
        parent: the layer that holds it.
        attribute: the parent's attribute; None for a node of the graph of a functional model.
        keys: indices and keys, from the outside in, where the attribute is a list, tuple or dictionary.
    """

    address: str
    route: str
    layer: keras.layers.Layer
    parent: keras.layers.Layer
    attribute: str | None = None
    keys: tuple = ()

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
            tracker.untrack(self.layer)
            held = getattr(self.parent, self.attribute)
            changed = _changed(held, self.keys, tracker.track(layer))
            if changed is not held:
                setattr(self.parent, self.attribute, changed)
        finally:
            if locked:
                tracker.lock()


def places_of(model):
    """Returns the places of all layers inside a model or layer, outermost first, each as often as it is held."""
    found, seen, waiting = [], {id(model)}, [(model, "", "")]
    while waiting:
        parent, address, route = waiting.pop(0)
        for place in _held_by(parent, address, route):
            found.append(place)
            if id(place.layer) not in seen:
                seen.add(id(place.layer))
                waiting.append((place.layer, f"{place.address}.", f"{place.route}."))
    return found


def _held_by(parent, address, route):
    nodes = parent.layers if isinstance(parent, keras.Function | keras.Sequential) else []
    for index, layer in enumerate(nodes):
        yield Place(address + layer.name, f"{route}layers[{index}]", layer, parent)
    graph = {id(layer) for layer in nodes}
    for attribute, value in vars(parent).items():
        if attribute in KERAS_OWN | TENSORFLOW_OWN:
            continue
        for keys, layer in _members(value):
            if id(layer) not in graph:
                step = attribute + "".join(f"[{key!r}]" for key in keys)
                yield Place(address + step, route + step, layer, parent, attribute, keys)


def _members(value, keys=()):
    """Iterates over pairs of keys and a layer in a value: a layer, or lists, tuples and dictionaries of such."""
    if isinstance(value, keras.layers.Layer):
        yield keys, value
    elif isinstance(value, dict | list | tuple):
        for key, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _members(member, (*keys, key))


def _changed(held, keys, layer):
    """Returns what holds another layer at some keys: the same list or dictionary, a new tuple, or the layer itself."""
    if not keys:
        return layer
    inner = _changed(held[keys[0]], keys[1:], layer)
    if isinstance(held, tuple):
        members = [inner if index == keys[0] else member for index, member in enumerate(held)]
        return type(held)(*members) if hasattr(held, "_fields") else type(held)(members)
    held[keys[0]] = inner
    return held
