"""Copies of models, also of models with incomplete configs."""

import contextlib
import functools
import gc
import inspect
import tempfile
from collections.abc import Iterator
from typing import Any

import keras

from tf_sparse_attention.layers.parts.adaptation import copy_low_rank
from tf_sparse_attention.layers.parts.variables import assign_copy
from tf_sparse_attention.models.rebuilding import initialize_with_zeros
from tf_sparse_attention.models.swapped_model import find_layer_sites, note_omitted_arguments

MISSING: Any = object()  # an attribute or a default that does not exist


def is_plain_graph(model: keras.layers.Layer) -> bool:
    """Return whether a model is defined by its layer graph alone, so that copying the graph copies the model."""
    if isinstance(model, keras.Sequential):
        return type(model).get_config is keras.Sequential.get_config
    if not isinstance(model, keras.Function):
        return False
    x = keras.Input((1,))
    functional = type(keras.Model(x, x))
    return type(model).get_config is functional.get_config and type(model).__init__ is functional.__init__


def rebuild_model(model: keras.Model) -> keras.Model:
    """Return a new model of the same class, config and weights.

    Raises:
        ValueError: If the model cannot be reconstructed from its config.
    """
    try:
        with initialize_with_zeros():
            copy = copy_layer(model)
            if not copy.built:
                copy.build_from_config(model.get_build_config())
    except Exception as error:  # the model's class may raise any exception
        raise ValueError(
            f"`model` must be reconstructible from its config; {type(model).__name__} is not: {error} "
            "Give the class a `get_config`, or pass the functional model `keras.Model(inputs, outputs)`."
        ) from error
    copy_state(model, copy)
    return copy


def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a new layer or model of the same class and arguments, without the weights.

    The arguments are read from the config. A constructor argument that the config omits is read from the attribute of
    the same name, if the copy differs in it. This also applies to all sublayers.

    Raises:
        ValueError: If the copy still differs in an argument.
    """
    error = None
    try:
        copy = type(layer).from_config(layer.get_config())
    except Exception as raised:  # any exception of the class, such as a TypeError for a missing argument
        copy, error = None, raised
    omitted = _omitted_arguments(layer, copy)
    if not omitted:
        if error is not None:
            raise error
        return copy
    del copy
    gc.collect()  # reference cycles keep the weights of the copy alive
    with _complete_configs(layer, omitted):
        copy = type(layer).from_config(layer.get_config())
    if still_omitted := _omitted_arguments(layer, copy):
        names = {name for arguments in still_omitted.values() for name in arguments}
        raise ValueError(f"its config has no {', '.join(sorted(names))}.")
    copies = layers_by_path(copy)
    for path, arguments in omitted.items():
        if path in copies:
            note_omitted_arguments(copies[path], arguments)
    return copy


def layers_by_path(model: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return a model and its layers, outermost first, by `LayerSite.index_path`; shared layers have several paths."""
    return {"": model, **{site.index_path: site.layer for site in find_layer_sites(model)}}


def _omitted_arguments(model, copy):
    """Return, by index path of the layer, the arguments that its config omits and in which the copy differs.

    Args:
        model: the original.
        copy: the copy. If None, attributes are compared with the constructor's defaults.
    """
    copies = {} if copy is None else layers_by_path(copy)
    found = {}
    for path, layer in layers_by_path(model).items():
        if copy is not None and path not in copies:
            continue
        arguments = {
            name: _attribute(layer, name)
            for name, default in _parameters(layer).items()
            if _differ(_attribute(layer, name), default if copy is None else _attribute(copies[path], name))
        }
        omitted = {name: value for name, value in arguments.items() if name not in _config_names(layer)}
        if omitted:
            found[path] = omitted
    return found


def _parameters(layer):
    """Return a layer's constructor parameters: by name, the default, or `MISSING` for required parameters."""
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    # `name` is excluded: Keras numbers the names of new layers.
    return {
        each.name: MISSING if each.default is each.empty else each.default
        for each in named
        if each.name not in ("self", "name")
    }


def _attribute(layer, name):
    """Return an instance attribute, with or without a leading underscore, or `MISSING`."""
    return vars(layer).get(name, vars(layer).get(f"_{name}", MISSING))


def _differ(value, other):
    """Return whether an argument differs from another value; False if no comparison is possible."""
    if value is MISSING:
        return False
    try:
        return other is MISSING or _comparable(value) != _comparable(other)
    except TypeError:
        return False


def _comparable(value):
    """Return an argument as plain data, which can be compared.

    Raises:
        TypeError: If the argument is not plain data, a function, or a Keras initializer, regularizer or constraint.
    """
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    if inspect.isfunction(value):
        return value.__module__, value.__qualname__
    if isinstance(value, keras.Initializer | keras.Regularizer | keras.constraints.Constraint):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, bool | int | float | str | None):
        return value
    raise TypeError(f"`value` must be an argument that can be compared. Received: {value!r}.")


def _config_names(layer):
    try:
        return set(layer.get_config())
    except Exception:  # a layer without a config is created by its parent layer
        return set(inspect.signature(type(layer).__init__).parameters)


@contextlib.contextmanager
def _complete_configs(model: keras.layers.Layer, omitted: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Add omitted arguments, by index path of the layer, to the configs of layers within the context."""
    layers = layers_by_path(model)
    for path, arguments in omitted.items():
        config = functools.partial(type(layers[path]).get_config, layers[path])
        vars(layers[path])["get_config"] = lambda config=config, arguments=arguments: {**config(), **arguments}
    try:
        yield
    finally:
        for path in omitted:
            vars(layers[path]).pop("get_config", None)  # a shared layer has several paths


def copy_state(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Copy the variables and assets of a layer and its sublayers to a copy of the layer."""
    originals, copies = layers_by_path(old), layers_by_path(new)
    copy_low_rank(originals, copies)
    if [tuple(weight.shape) for weight in old.weights] != [tuple(weight.shape) for weight in new.weights]:
        raise ValueError(
            f"`model` must be reconstructible from its config; the copy of {old.name}, a {type(old).__name__}, "
            f"{_weight_differences(originals, copies)}."
        )
    for path, layer in originals.items():
        if path in copies:
            _copy_own_state(layer, copies[path])
            _copy_constants(layer, copies[path])
        elif layer.weights:  # preprocessing layers created by the first call have no weights
            raise ValueError(f"`model` must be reconstructible from its config; the copy has no {layer.name}.")


def _copy_constants(old, new):
    """Copy the tensors among the arguments of a functional model's operations, which are not weights.

    The logits of KerasHub's `Gemma3nCausalLM` are a product with the token embeddings that its constructor found.
    """
    if not isinstance(old, keras.Function):
        return
    for theirs, own in zip(old.operations, new.operations, strict=True):
        for old_node, new_node in zip(theirs._inbound_nodes, own._inbound_nodes, strict=False):
            old_arguments, new_arguments = old_node.arguments, new_node.arguments
            if any(map(keras.ops.is_tensor, keras.tree.flatten(old_arguments.args))):
                new_arguments.args = keras.tree.map_structure(
                    lambda x, y: x if keras.ops.is_tensor(x) else y, old_arguments.args, new_arguments.args
                )


def _weight_differences(originals, copies):
    """Return the differences between the weights of a copy and of the original, as text."""
    theirs, own = (dict(_shapes(layers)) for layers in (originals, copies))
    lacks = [f"{name} {shape}" for name, shape in theirs.items() if own.get(name) != shape]
    extra = [f"{name} {shape}" for name, shape in own.items() if theirs.get(name) != shape]
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("has", extra)) if names]
    return " and ".join(parts) or "has its weights in another order"


def _shapes(layers):
    """Iterate over the path and shape of each weight; the path is relative to the innermost layer with the weight."""
    seen = set()
    for path, layer in reversed(layers.items()):  # `layers_by_path` lists outer layers first
        for weight in layer.weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                yield f"{path}.{weight.name}".lstrip("."), tuple(weight.shape)


def _copy_own_state(old, new):
    variables: dict[str, Any] = {}
    old.save_own_variables(variables)
    if variables:
        # Copy through NumPy: on JAX, a variable shares the array that it is assigned.
        new.load_own_variables({name: keras.ops.convert_to_numpy(value) for name, value in variables.items()})
    if getattr(old, "lora_enabled", False):  # for LoRA, Keras saves only the merged kernel
        for ours, theirs in zip(new.weights, old.weights, strict=True):
            assign_copy(ours, theirs)
    if new.trainable != old.trainable:
        new.trainable = old.trainable
    for ours, theirs in zip(new.weights, old.weights, strict=True):
        ours.trainable = theirs.trainable  # LoRA freezes single weights
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
