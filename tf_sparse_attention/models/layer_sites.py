"""References to layers inside a model, and their replacement."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

# Attributes of Keras and TensorFlow whose references to layers are also in other attributes.
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
    """Reference to a layer inside a model.

    Attributes:
        path: names and attributes from the model to the layer, such as "transformer_layer_0._self_attention_layer".
        index_path: the same path with indices instead of the names of graph nodes, which may differ in a copy.
        layer: the layer.
        parent: the layer that contains it.
        attribute: attribute of the parent. None: the layer is a node of a functional graph.
        keys: indices and keys, outermost first, if the attribute is a list, tuple or dictionary.
    """

    path: str
    index_path: str
    layer: keras.layers.Layer
    parent: keras.layers.Layer
    attribute: str | None = None
    keys: tuple = ()

    def replace(self, layer: keras.layers.Layer) -> None:
        """Replace the layer, also in the tracker of Keras.

        Keras forbids new layers in a built layer, so the tracker is unlocked during the replacement.

        Args:
            layer: the new layer.

        Raises:
            ValueError: if the site is a node of a graph.
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
    """Enter the name scopes of a built layer, so that its replacement gets the same weight paths."""
    *names, _ = layer.path.split("/")
    with contextlib.ExitStack() as stack:
        for depth, name in enumerate(names):
            stack.enter_context(keras.name_scope(name, override_parent="/".join(names[:depth])))
        yield


def find_layer_sites(model: keras.layers.Layer) -> list[LayerSite]:
    """Return the sites of all layers inside a model or layer, outermost first; shared layers have several sites."""
    sites, seen, queue = [], {id(model)}, [(model, "", "")]
    while queue:
        parent, path, index_path = queue.pop(0)
        for site in _sites_in(parent, path, index_path):
            sites.append(site)
            if id(site.layer) not in seen:
                seen.add(id(site.layer))
                queue.append((site.layer, f"{site.path}.", f"{site.index_path}."))
    return sites


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
    """Yield pairs of keys and a layer in a value: a layer, or nested lists, tuples and dictionaries."""
    if isinstance(value, keras.layers.Layer):
        yield keys, value
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _layers_in(item, (*keys, key))


def _replace_at(value: Any, keys: tuple, layer: keras.layers.Layer) -> Any:
    """Replace the layer at some keys of a value. Lists and dictionaries change in place; tuples are copied."""
    if not keys:
        return layer
    inner = _replace_at(value[keys[0]], keys[1:], layer)
    if isinstance(value, tuple):
        items = [inner if index == keys[0] else item for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    value[keys[0]] = inner
    return value
