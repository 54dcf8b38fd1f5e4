"""Where layers are held in a model, and how to replace one of them."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

# Attributes in which Keras and TensorFlow hold a second reference to what is in other attributes.
KERAS_ATTRIBUTES = {
    "_layers",
    "_operations",
    "_functional",
    "_metrics",
    "_tracker",
    "_inbound_nodes",
    "_outbound_nodes",
}
TENSORFLOW_ATTRIBUTES = {"_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"}


@dataclasses.dataclass(frozen=True)
class LayerSite:
    """One reference to a layer inside a model.

    Attributes:
        path: names and attributes from the model down, such as "transformer_layer_0._self_attention_layer".
        index_path: the same with indices for the layers of a graph, whose names may differ in a copy.
        layer: the layer.
        parent: the layer that holds it.
        attribute: the parent's attribute; None for a node of the graph of a functional model.
        keys: indices and keys, outermost first, where the attribute is a list, tuple or dictionary.
    """

    path: str
    index_path: str
    layer: keras.layers.Layer
    parent: keras.layers.Layer
    attribute: str | None = None
    keys: tuple = ()

    def replace(self, layer: keras.layers.Layer) -> None:
        """Replaces the layer by another one, which Keras then tracks in its stead.

        Keras allows no new layers in one that is built, so its tracker is unlocked meanwhile.

        Args:
            layer: the new layer.

        Raises:
            ValueError: If the site is a node of a graph.
        """
        if self.attribute is None:
            raise ValueError(f"`layer` cannot be put into the graph of {self.parent.name}. Received: {layer!r}.")
        tracker = self.parent._tracker
        locked = tracker.locked
        tracker.unlock()
        try:
            tracker.untrack(self.layer)
            value = getattr(self.parent, self.attribute)
            changed = _replace_at(value, self.keys, tracker.track(layer))
            if changed is not value:
                setattr(self.parent, self.attribute, changed)
        finally:
            if locked:
                tracker.lock()


@contextlib.contextmanager
def scope_around(layer: keras.layers.Layer) -> Iterator[None]:
    """Context in which a layer is built with the paths of weights that it would have in the place of a built one."""
    *names, _ = layer.path.split("/")
    with contextlib.ExitStack() as stack:
        for depth, name in enumerate(names):
            stack.enter_context(keras.name_scope(name, override_parent="/".join(names[:depth])))
        yield


def find_layer_sites(model: keras.layers.Layer) -> list[LayerSite]:
    """Returns the sites of all layers inside a model or layer, outermost first; shared layers have several."""
    found, seen, queue = [], {id(model)}, [(model, "", "")]
    while queue:
        parent, path, index_path = queue.pop(0)
        for site in _sites_in(parent, path, index_path):
            found.append(site)
            if id(site.layer) not in seen:
                seen.add(id(site.layer))
                queue.append((site.layer, f"{site.path}.", f"{site.index_path}."))
    return found


def _sites_in(parent: keras.layers.Layer, path: str, index_path: str) -> Iterator[LayerSite]:
    nodes = parent.layers if isinstance(parent, keras.Function | keras.Sequential) else []
    for index, layer in enumerate(nodes):
        yield LayerSite(path + layer.name, f"{index_path}layers[{index}]", layer, parent)
    node_ids = {id(layer) for layer in nodes}
    for attribute, value in vars(parent).items():
        if attribute in KERAS_ATTRIBUTES | TENSORFLOW_ATTRIBUTES:
            continue
        for keys, layer in _layers_in(value):
            if id(layer) not in node_ids:
                step = attribute + "".join(f"[{key!r}]" for key in keys)
                yield LayerSite(path + step, index_path + step, layer, parent, attribute, keys)


def _layers_in(value, keys=()):
    """Iterates over pairs of keys and a layer in a value: a layer, or lists, tuples and dictionaries of such."""
    if isinstance(value, keras.layers.Layer):
        yield keys, value
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _layers_in(item, (*keys, key))


def _replace_at(value: Any, keys: tuple, layer: keras.layers.Layer) -> Any:
    """Returns a value with the layer at some keys replaced: the same list or dictionary, a new tuple, or the layer."""
    if not keys:
        return layer
    inner = _replace_at(value[keys[0]], keys[1:], layer)
    if isinstance(value, tuple):
        items = [inner if index == keys[0] else item for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    value[keys[0]] = inner
    return value
