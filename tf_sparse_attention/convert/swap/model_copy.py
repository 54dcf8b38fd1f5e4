"""Copies of models."""

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
from tf_sparse_attention.models.layer_sites import find_layer_sites
from tf_sparse_attention.models.rebuilding import initialize_with_zeros
from tf_sparse_attention.models.swapped_model import note_omitted_arguments

MISSING: Any = object()  # an attribute or a default that does not exist


def is_plain_graph(model: keras.layers.Layer) -> bool:
    """Return whether a model is nothing but its graph, so that a copy of the graph is a copy of the model."""
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
        ValueError: If the model cannot be made from its config.
    """
    try:
        with initialize_with_zeros():
            copy = copy_layer(model)
            if not copy.built:
                copy.build_from_config(model.get_build_config())
    except Exception as error:  # whatever the model's own class raises
        raise ValueError(
            f"`model` must be reconstructible from its config; {type(model).__name__} is not: {error} "
            "Give the class a `get_config`, or pass the functional model `keras.Model(inputs, outputs)`."
        ) from error
    copy_state(model, copy)
    return copy


def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Return a new layer or model of the same class and arguments, without the weights.

    The arguments are those of the config. A constructor argument that a config omits is taken from the attribute of
    the same name, if the copy differs in it. This includes the configs of all layers inside.

    Raises:
        ValueError: If the copy differs in an argument even so.
    """
    error = None
    try:
        copy = type(layer).from_config(layer.get_config())
    except Exception as raised:  # whatever the class raises, such as a TypeError for a missing argument
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
    copies = _layers_by_path(copy)
    for path, arguments in omitted.items():
        if path in copies:
            note_omitted_arguments(copies[path], arguments)
    return copy


def _layers_by_path(model):
    return {"": model, **{site.index_path: site.layer for site in find_layer_sites(model)}}


def _omitted_arguments(model, copy):
    """Return, by index path of the layer, the constructor arguments that its config omits and the copy differs in.

    Args:
        model: the original.
        copy: the copy, or None. Attributes are then compared with the defaults of the constructor.
    """
    copies = {} if copy is None else _layers_by_path(copy)
    found = {}
    for path, layer in _layers_by_path(model).items():
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
    """Return the defaults of the constructor of a layer by name, `MISSING` where there is none."""
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    # Keras numbers the names of new layers.
    return {
        each.name: MISSING if each.default is each.empty else each.default
        for each in named
        if each.name not in ("self", "name")
    }


def _attribute(layer, name):
    """Return an attribute that a constructor has set, under its own name or with an underscore, or `MISSING`."""
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
    """Return an argument in a form that can be compared: plain data.

    Raises:
        TypeError: If it is neither plain data, nor a function, nor of one of the small classes of Keras.
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
    except Exception:  # a layer without a config is made by the layer that holds it
        return set(inspect.signature(type(layer).__init__).parameters)


@contextlib.contextmanager
def _complete_configs(model: keras.layers.Layer, omitted: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Context in which the configs of layers in a model have the arguments that they omit, by index path."""
    layers = _layers_by_path(model)
    completed = [layers[path] for path in omitted]
    for layer, arguments in zip(completed, omitted.values(), strict=True):
        vars(layer)["get_config"] = functools.partial(_complete_config, layer, arguments)
    try:
        yield
    finally:
        for layer in completed:
            del vars(layer)["get_config"]


def _complete_config(layer, arguments):
    return {**type(layer).get_config(layer), **arguments}


def copy_state(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Copy the variables and assets of a layer, and of all layers in it, to a copy of it."""
    originals, copies = _layers_by_path(old), _layers_by_path(new)
    copy_low_rank(originals, copies)
    if [tuple(weight.shape) for weight in old.weights] != [tuple(weight.shape) for weight in new.weights]:
        raise ValueError(
            f"`model` must be reconstructible from its config; the copy of {old.name}, a {type(old).__name__}, "
            f"{_weight_differences(originals, copies)}."
        )
    for path, layer in originals.items():
        if path in copies:
            _copy_own_state(layer, copies[path])
        elif layer.weights:  # layers of preprocessing that the first call makes have none
            raise ValueError(f"`model` must be reconstructible from its config; the copy has no {layer.name}.")


def _weight_differences(originals, copies):
    """Return how the weights of a copy differ from those of the original, as text."""
    theirs, own = (dict(_shapes(layers)) for layers in (originals, copies))
    lacks = [f"{name} {shape}" for name, shape in theirs.items() if own.get(name) != shape]
    extra = [f"{name} {shape}" for name, shape in own.items() if theirs.get(name) != shape]
    parts = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("has", extra)) if names]
    return " and ".join(parts) or "has its weights in another order"


def _shapes(layers):
    """Iterate over pairs of the path and the shape of each weight, by the innermost layer that holds the weight."""
    seen = set()
    for path, layer in reversed(layers.items()):  # `_layers_by_path` has the outermost first
        for weight in layer.weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                yield f"{path}.{weight.name}".lstrip("."), tuple(weight.shape)


def _copy_own_state(old, new):
    variables: dict[str, Any] = {}
    old.save_own_variables(variables)
    if variables:
        # By NumPy, since on JAX a variable takes over the array that it is given.
        new.load_own_variables({name: keras.ops.convert_to_numpy(value) for name, value in variables.items()})
    if getattr(old, "lora_enabled", False):  # of which Keras stores the sum of the kernels alone
        for ours, theirs in zip(new.weights, old.weights, strict=True):
            assign_copy(ours, theirs)
    if new.trainable != old.trainable:
        new.trainable = old.trainable
    for ours, theirs in zip(new.weights, old.weights, strict=True):
        ours.trainable = theirs.trainable  # single weights are frozen where low-rank kernels are trained
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)
