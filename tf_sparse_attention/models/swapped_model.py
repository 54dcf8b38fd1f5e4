"""Saves and loads models of other classes whose attention was replaced."""

import functools
import inspect
import itertools
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import keras

from tf_sparse_attention.atomic_files import atomic_file
from tf_sparse_attention.layers.attention.swapped_attention import CallMask, SwappedAttention
from tf_sparse_attention.layers.parts.projections import get_attribute, input_sizes
from tf_sparse_attention.models.layer_sites import LayerSite, find_layer_sites, scope_around
from tf_sparse_attention.models.swapped_generation import SwappedGeneration, generates
from tf_sparse_attention.types import Config

PACKAGE = "tf_sparse_attention"
COMMON_NAME = "SwappedModel"  # by which all such models are saved: it loads each, and says nothing of its class
CONFIG_FILES = ("config.json", "task.json")  # of the backbone and of the task


def registered_name(class_name: str) -> str:
    """Returns the registered name of a class, in the words of Keras."""
    return f"{PACKAGE}>{class_name}"


def restore_class_names(preset: str | pathlib.Path) -> None:
    """Gives the models in the folder of a preset the names of their own classes, by which KerasHub looks for them."""
    for path in (pathlib.Path(preset) / name for name in CONFIG_FILES):
        if not path.is_file():
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["registered_name"] != registered_name(COMMON_NAME):
            continue
        config["registered_name"] = registered_name(config["class_name"])
        with atomic_file(path) as new:
            new.write_text(json.dumps(config, indent=4), encoding="utf-8")


# The methods in which KerasHub's decoders make a mask of all pairs of positions.
MASK_METHODS = ("_compute_self_attention_mask", "_compute_attention_mask")
OMITTED = "_omitted_arguments"  # the attribute with the names that `note_omitted_arguments` is given
PADDING_MASKS = ("decoder_padding_mask", "padding_mask")


@keras.saving.register_keras_serializable(package=PACKAGE, name=COMMON_NAME)
class SwappedModel:
    """Mixin for the class of a model or layer with replaced sublayers: its config includes them.

    The config of such a model, or of a layer in it, comes from a class that only knows dense attention. So it is saved
    together with the index path and config of each `SwappedAttention`; loading makes the dense model and replaces its
    attention again.
    """

    def get_config(self) -> Config:
        first_paths: dict[int, str] = {}
        swapped: dict[str, Any] = {}
        for site in find_layer_sites(self):
            if not isinstance(site.layer, SwappedAttention):
                continue
            # A shared layer has its config at its first site, and the path of that site at the others.
            first_path = first_paths.setdefault(id(site.layer), site.index_path)
            is_first = first_path == site.index_path
            swapped[site.index_path] = keras.saving.serialize_keras_object(site.layer) if is_first else first_path
        config = {"model": _dense_config(self), "attention": swapped}
        return config | {"omitted": sorted(_omitted_names(self))}

    def save_to_preset(self, preset_dir: str, *args: Any, **kwargs: Any) -> None:
        """Saves a model of KerasHub as its class does; `tsa.convert.register_presets` says how to load it."""
        super().save_to_preset(preset_dir, *args, **kwargs)  # type: ignore[misc]  # of the dense class
        restore_class_names(preset_dir)

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> keras.layers.Layer:
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        note_omitted_arguments(model, config["omitted"])
        sites = {site.index_path: site for site in find_layer_sites(model)}
        missing = sorted(set(config["attention"]) - set(sites))
        if missing:
            raise ValueError(f"`config` must name layers of the {type(model).__name__} in it. Received: {missing}.")
        new_layers = {}
        for path, layer in config["attention"].items():
            if isinstance(sites[path].layer, SwappedAttention):  # the config of a layer in between had it too
                new_layers[path] = sites[path].layer
                continue
            is_shared = isinstance(layer, str)
            with scope_around(sites[path].layer):
                new_layers[path] = new_layers[layer] if is_shared else keras.saving.deserialize_keras_object(layer)
            swap(sites[path], new_layers[path])
        return wrap_for_saving(model)


def note_omitted_arguments(layer: keras.layers.Layer, names: Iterable[str]) -> None:
    """Let the saved config of a layer have constructor arguments that the `get_config` of its class omits.

    Args:
        layer: layer or model; its attributes of the same names have the values.
        names: names of constructor arguments.
    """
    vars(layer)[OMITTED] = {*_omitted_names(layer), *names}  # not by `setattr`, since Keras tracks sets


def _omitted_names(layer):
    return vars(layer).get(OMITTED, ())


def wrap_for_saving(model: keras.layers.Layer) -> keras.layers.Layer:
    """Returns the model itself; its class, and those of all layers around replaced ones, become `SwappedModel`s."""
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
    """Returns the class of models of a dense class whose attention was replaced."""
    mixins = (SwappedModel, SwappedGeneration) if generates(dense_class) else (SwappedModel,)
    attributes: dict[str, Any] = {"__module__": __name__, "__doc__": dense_class.__doc__}
    backbone_class = getattr(dense_class, "backbone_cls", None)
    if backbone_class is not None:  # by which KerasHub finds the class of a task
        attributes["backbone_cls"] = swapped_class(backbone_class)
    swapped = type(dense_class)(f"Swapped{dense_class.__name__}", (*mixins, dense_class), attributes)
    # All are saved by the name of the mixin, which can load them, since the config has the dense class; and KerasHub
    # finds each by its own.
    keras.saving.register_keras_serializable(package=PACKAGE, name=COMMON_NAME)(swapped)
    keras.saving.get_custom_objects().update(
        {registered_name(COMMON_NAME): SwappedModel, registered_name(swapped.__name__): swapped}
    )
    return swapped


def _dense_config(model):
    """Returns what Keras would save for the class before `wrap_for_saving`."""
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
    """Replaces a built dense attention by a `SwappedAttention`.

    A decoder of KerasHub makes a mask of all pairs of positions, O(T^2), for dense attention; its method is replaced by
    one that returns the parts of that mask.

    Args:
        site: `LayerSite` of a dense attention.
        swapped: the new layer, which gets built.
    """
    sizes = input_sizes(site.layer)
    with scope_around(site.layer):
        if not swapped.attention.built:
            swapped.attention.build(*((None, None, size) for size in sizes))
        if not swapped.built:
            swapped.build((None, None, sizes[0]))
    site.replace(swapped)
    for name in MASK_METHODS:
        if hasattr(site.parent, name):
            signature = inspect.signature(getattr(type(site.parent), name))
            setattr(site.parent, name, functools.partial(_mask_parts, signature))


def _mask_parts(signature, *args, **kwargs):
    """Returns the parts of the mask that the method of a decoder of some signature makes of its arguments."""
    given = signature.bind(None, *args, **kwargs).arguments
    if given.get("vision_mask") is not None:
        raise ValueError(
            "`vision_mask` must be None where attention was replaced: images attend both ways, and sparse patterns "
            "of decoders do not. Received: a mask."
        )
    sequence = next(itertools.islice(given.values(), 1, None))  # the first after `self`
    padding_mask = next((given[name] for name in PADDING_MASKS if given.get(name) is not None), None)
    if padding_mask is None:
        padding_mask = getattr(sequence, "_keras_mask", None)
    return CallMask(padding_mask, given.get("decoder_attention_mask"), given.get("use_causal_mask", True))
