"""Saving and loading of Keras and KerasHub models with replaced attention."""

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
MASK_METHODS = ("_compute_self_attention_mask", "_compute_attention_mask")
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
    """Return the mask arguments of a mask method of a decoder as a `CallMask`."""
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
    return CallMask(padding_mask, arguments.get("decoder_attention_mask"), arguments.get("use_causal_mask", True))
