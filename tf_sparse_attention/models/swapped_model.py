"""Keras and KerasHub models with replaced layers: replacement, saving, loading, and generation with KV caches."""

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.layers.attention.swapped_attention import (
    CALL_STYLES,
    CallMask,
    Prompt,
    SwappedAttention,
    caches_in_use,
    using_caches,
)
from tf_sparse_attention.layers.parts.projections import get_attribute, input_size
from tf_sparse_attention.ops.autograph import without_autograph
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Size, Tensor

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


PACKAGE = "tf_sparse_attention"
COMMON_NAME = "SwappedModel"  # registered name in saved files of all models with replaced attention
CONFIG_FILES = ("config.json", "task.json")  # backbone and task of a preset


def registered_name(class_name: str) -> str:
    """Return the registered Keras name of a class."""
    return f"{PACKAGE}>{class_name}"


def restore_class_names(preset: str | pathlib.Path) -> None:
    """Replace the common name in the files of a preset by class names, which KerasHub searches for."""
    for path in (pathlib.Path(preset) / name for name in CONFIG_FILES):
        if not path.is_file():
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["registered_name"] != registered_name(COMMON_NAME):
            continue
        config["registered_name"] = registered_name(config["class_name"])
        with atomic_file(path) as new:
            new.write_text(json.dumps(config, indent=4), encoding="utf-8")


# Methods of KerasHub decoders that create masks of all pairs of positions.
MASK_METHODS = (
    "_compute_self_attention_mask",
    "_compute_attention_mask",
    "_make_self_attention_mask",
    "_make_attention_mask",  # of an encoder
)
OMITTED = "_omitted_arguments"  # attribute for the names from `note_omitted_arguments`
PADDING_MASKS = ("decoder_padding_mask", "padding_mask")


@keras.saving.register_keras_serializable(package=PACKAGE, name=COMMON_NAME)
class SwappedModel:
    """Mixin that saves and loads models and layers with replaced attention.

    The saved config has the config of the dense model, and the path and config of each `SwappedAttention`. Loading
    creates the dense model and replaces its attention.
    """

    def get_config(self) -> Config:
        first_paths: dict[int, str] = {}
        swapped: dict[str, Any] = {}
        for site in find_layer_sites(self):
            if not isinstance(site.layer, SwappedAttention):
                continue
            # A shared layer has a config at the first site, and the path of the first site at later sites.
            first_path = first_paths.setdefault(id(site.layer), site.index_path)
            is_first = first_path == site.index_path
            swapped[site.index_path] = keras.saving.serialize_keras_object(site.layer) if is_first else first_path
        config = {"model": _dense_config(self), "attention": swapped}
        return config | {"omitted": sorted(_omitted_names(self))}

    def save_to_preset(self, preset_dir: str, *args: Any, **kwargs: Any) -> None:
        """Save a KerasHub model. Call `tsa.convert.register_presets` before loading it."""
        super().save_to_preset(preset_dir, *args, **kwargs)  # type: ignore[misc]  # of the dense class
        restore_class_names(preset_dir)

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> keras.layers.Layer:
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        note_omitted_arguments(model, config["omitted"])
        sites = {site.index_path: site for site in find_layer_sites(model)}
        missing = sorted(set(config["attention"]) - set(sites))
        if missing:
            raise ValueError(f"`config` must name layers of the {type(model).__name__}. Received: {missing}.")
        new_layers = {}
        for path, layer in config["attention"].items():
            if isinstance(sites[path].layer, SwappedAttention):  # already replaced by the config of an outer layer
                new_layers[path] = sites[path].layer
                continue
            is_shared = isinstance(layer, str)
            with scope_around(sites[path].layer):
                new_layers[path] = new_layers[layer] if is_shared else keras.saving.deserialize_keras_object(layer)
            swap(sites[path], new_layers[path])
        return wrap_for_saving(model)


def note_omitted_arguments(layer: keras.layers.Layer, names: Iterable[str]) -> None:
    """Add constructor arguments that `get_config` of a layer omits to its saved config.

    Args:
        layer: layer or model. Values come from attributes with the same names.
        names: names of constructor arguments.
    """
    vars(layer)[OMITTED] = {*_omitted_names(layer), *names}  # not `setattr`, because Keras tracks sets


def _omitted_names(layer):
    return vars(layer).get(OMITTED, ())


def wrap_for_saving(model: keras.layers.Layer) -> keras.layers.Layer:
    """Change the classes of a model and of all layers that contain replaced attention to `SwappedModel`s."""
    sites = find_layer_sites(model)
    paths = [site.index_path for site in sites if isinstance(site.layer, SwappedAttention)]
    for site in sites:
        if any(path.startswith(f"{site.index_path}.") for path in paths):
            _wrap_class(site.layer)
    if paths:
        _wrap_class(model)
    return model


def _wrap_class(layer):
    if not isinstance(layer, SwappedModel):
        layer.__class__ = swapped_class(type(layer))  # type: ignore[arg-type]  # its type is `Any`


@functools.cache
def swapped_class(dense_class: type) -> type:
    """Create the class of models with replaced attention for a dense class."""
    mixins = (SwappedModel, SwappedGeneration) if generates(dense_class) else (SwappedModel,)
    attributes: dict[str, Any] = {"__module__": __name__, "__doc__": dense_class.__doc__}
    backbone_class = getattr(dense_class, "backbone_cls", None)
    if backbone_class is not None:  # KerasHub finds the class of a task by this attribute
        attributes["backbone_cls"] = swapped_class(backbone_class)
    swapped = type(dense_class)(f"Swapped{dense_class.__name__}", (*mixins, dense_class), attributes)
    # Files have the name of the mixin. It loads all classes, because the config names the dense class. KerasHub
    # searches for the name of each class.
    keras.saving.register_keras_serializable(package=PACKAGE, name=COMMON_NAME)(swapped)
    keras.saving.get_custom_objects().update(
        {registered_name(COMMON_NAME): SwappedModel, registered_name(swapped.__name__): swapped}
    )
    return swapped


def _dense_config(model):
    """Return the Keras config of the model with its dense class."""
    swapped = type(model)
    model.__class__ = swapped.__bases__[-1]  # the dense class
    try:
        config = keras.saving.serialize_keras_object(model)
    finally:
        model.__class__ = swapped
    for name in _omitted_names(model):
        config["config"][name] = keras.saving.serialize_keras_object(get_attribute(model, name))
    return {name: value for name, value in config.items() if name != "compile_config"}


def swap(site: LayerSite, swapped: SwappedAttention) -> None:
    """Replace a built dense attention by a `SwappedAttention`.

    KerasHub decoders have a method that creates a mask of all pairs of positions, O(T^2), for dense attention. `swap`
    replaces this method by a function that returns only the parts of the mask.

    Args:
        site: `LayerSite` of a dense attention.
        swapped: the new layer; built if needed.
    """
    if not swapped.built:
        with scope_around(site.layer):
            swapped.build((None, None, input_size(site.layer)))
    site.replace(swapped)
    is_bidirectional = get_attribute(site.layer, "use_bidirectional_attention", False)
    window = site.layer.sliding_window_size if is_bidirectional and site.layer.use_sliding_window_attention else None
    for name in MASK_METHODS:
        if hasattr(site.parent, name):
            signature = inspect.signature(getattr(type(site.parent), name))
            causal = not is_bidirectional and name != "_make_attention_mask"
            setattr(site.parent, name, functools.partial(_mask_parts, signature, causal, window))
    experts = getattr(site.parent, "mlp", None)
    if isinstance(experts, keras.layers.Layer) and "attention_mask" in inspect.signature(experts.call).parameters:
        vars(experts)["call"] = functools.partial(_call_without_mask, experts.call)


def _call_without_mask(call, *args, **kwargs):
    """Call experts without an attention mask. They read from it which tokens attend to any token, and all do."""
    return call(*args, **{**kwargs, "attention_mask": None})


def _mask_parts(signature, causal, window, *args, **kwargs):
    """Return the mask arguments of a mask method of a decoder as a `CallMask`.

    Args:
        signature: signature of the method.
        causal: whether the method masks later positions.
        window: number of positions that queries see both ways, or None.
        *args: arguments of the method.
        **kwargs: arguments of the method.
    """
    arguments = signature.bind(None, *args, **kwargs).arguments
    if arguments.get("vision_mask") is not None:
        raise ValueError(
            "`vision_mask` must be None with replaced attention: images need bidirectional attention, but sparse "
            "patterns of decoders are causal. Received: a mask."
        )
    sequence = next(itertools.islice(arguments.values(), 1, None))  # the first after `self`
    padding_mask = next((arguments[name] for name in PADDING_MASKS if arguments.get(name) is not None), None)
    if padding_mask is None:
        padding_mask = getattr(sequence, "_keras_mask", None)
    attention_mask = arguments.get("decoder_attention_mask")
    if window is not None:
        distance = ops.arange(shape(sequence)[1])
        distance = distance - distance[:, None]
        after = window // 2
        attention_mask = ops.logical_and(distance <= after, distance > after - window)
    return CallMask(padding_mask, attention_mask, arguments.get("use_causal_mask", causal))


# Methods of generating models, with the same arguments and results in all KerasHub decoders.
GENERATION_METHODS = ("generate_step", "_build_cache", "call_with_cache")
_tokens_before: contextvars.ContextVar[Size | None] = contextvars.ContextVar("tokens_before", default=None)


class SwappedGeneration:
    """Mixin for generating KerasHub models that uses the KV caches of replaced attention.

    KerasHub allocates a cache of the full length for every layer, and writes the prompt into it, including padding. A
    window needs fewer positions, and content-based patterns cache other tensors. So this model returns a dictionary
    instead: "model" is the cache of KerasHub, and "layers" are the caches of the replaced layers for the tokens before
    the first step. KerasHub samplers accept this dictionary. The KerasHub caches are used if a layer cannot decode
    with a cache, is called several times per pass, or has a prompt of another length than the KerasHub cache.
    """

    @without_autograph  # KerasHub converts this method, although its code also runs on JAX
    def generate_step(self, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        lengths = ops.sum(ops.cast(inputs["padding_mask"], "int32"), axis=-1)
        # The first step recomputes the last token that all prompts have.
        with prompt_length_scope(ops.maximum(ops.min(lengths) - 1, 0)):
            return super().generate_step(inputs, *args, **kwargs)  # type: ignore[misc]

    def _build_cache(self, token_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        length, layers = _tokens_before.get(), _attention_layers(self)
        if length is None or any(layer.cache_unsupported_reason for layer in layers):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        prompt = Prompt(shape(token_ids)[1], length)
        with using_caches(layers, [{}] * len(layers), prompt) as used:
            hidden_states, model_cache = super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        # A layer has only one cache, so it must be called only once.
        if not prompt.fits or len(used.called) > len(set(used.called)):
            return super()._build_cache(token_ids, *args, **kwargs)  # type: ignore[misc]
        if len(used.called) < len(layers):  # the other layers are in encoders
            model_cache = _placeholder_cache(self, model_cache, len(used.called))
        return hidden_states, {"model": model_cache, "layers": [used.caches[id(layer)] for layer in layers]}

    def call_with_cache(
        self, token_ids: Tensor, cache: Any, cache_update_index: Size, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Any]:
        call = super().call_with_cache  # type: ignore[misc]
        layers = _attention_layers(self)
        if not isinstance(cache, dict):
            in_use = caches_in_use(layers[0]) if layers else None
            if in_use is not None:
                if in_use.prompt is not None:
                    in_use.prompt.max_length = _max_length(self, cache)
                cache = _placeholder_cache(self, cache, len(layers))
            return call(token_ids, cache, cache_update_index, *args, **kwargs)
        with using_caches(layers, cache["layers"]) as used:
            logits, hidden_states, model_cache = call(token_ids, cache["model"], cache_update_index, *args, **kwargs)
        return logits, hidden_states, {"model": model_cache, "layers": [used.caches[id(layer)] for layer in layers]}


def generates(model_class: type) -> bool:
    """Return whether models of a class generate with caches, like `CausalLM` of KerasHub."""
    return all(hasattr(model_class, name) for name in GENERATION_METHODS)


@contextlib.contextmanager
def prompt_length_scope(length: Size) -> Iterator[None]:
    """Create caches in this context for prompts with `length` tokens before the first step."""
    token = _tokens_before.set(length)
    try:
        yield
    finally:
        _tokens_before.reset(token)


def _attention_layers(model):
    """Return the attention layers that replaced dense attention, without duplicates."""
    return list({id(layer.attention): layer.attention for layer in _swapped_layers(model)}.values())


def _swapped_layers(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, SwappedAttention)]


def _max_length(model, cache):
    """Return the length of a KerasHub cache: one tensor, a pair per layer, or one tensor and further states."""
    if isinstance(cache, tuple):
        return shape(cache[0][0])[1] if isinstance(cache[0], tuple) else shape(cache[0])[3]
    styles = [CALL_STYLES[layer.call_style] for layer in _swapped_layers(model)]
    return shape(cache)[4 if any(style.has_heads_first for style in styles) else 3]


def _placeholder_cache(model, cache, num_layers):
    """Return a small placeholder for a KerasHub cache that replaced layers ignore: one number per row and layer.

    If the model also has dense attention, return the cache itself.
    """
    if isinstance(cache, tuple) and not isinstance(cache[0], tuple):  # and the states of layers with linear attention
        layers = getattr(model.backbone, "transformer_layers", ())
        num_others = sum(getattr(layer, "layer_type", None) == "linear_attention" for layer in layers)
        return _placeholder_cache(model, cache[0], num_layers + num_others), *cache[1:]
    is_tuple = isinstance(cache, tuple)  # a pair of keys and values per layer
    if (len(cache) if is_tuple else cache.shape[1]) != num_layers:
        return cache
    if is_tuple:
        return tuple((key[:, :1, :1, :1], value[:, :1, :1, :1]) for key, value in cache)
    return cache[:, :, :1, :1, :1, :1]
