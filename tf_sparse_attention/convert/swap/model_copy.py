"""Copies of models."""

import tempfile
from typing import Any

import keras

from tf_sparse_attention.convert.weights import initialize_with_zeros
from tf_sparse_attention.layers.parts.adaptation import copy_low_rank
from tf_sparse_attention.layers.parts.copies import assign_copy
from tf_sparse_attention.models.layer_sites import find_layer_sites


def is_plain_graph(model: keras.layers.Layer) -> bool:
    """Returns whether a model is nothing but its graph, so that a copy of the graph is a copy of the model."""
    if isinstance(model, keras.Sequential):
        return type(model).get_config is keras.Sequential.get_config
    if not isinstance(model, keras.Function):
        return False
    x = keras.Input((1,))
    functional = type(keras.Model(x, x))
    return type(model).get_config is functional.get_config and type(model).__init__ is functional.__init__


def rebuild_model(model: keras.Model) -> keras.Model:
    """Returns a new model of the same class, config and weights.

    Raises:
        ValueError: If the model cannot be made from its config.
    """
    try:
        with initialize_with_zeros():
            copy = type(model).from_config(model.get_config())
            if not copy.built:
                copy.build_from_config(model.get_build_config())
    except Exception as error:  # whatever the model's own class raises
        raise ValueError(
            f"`model` must be reconstructible from its config; {type(model).__name__} is not: {error} "
            "Give the class a `get_config`, or pass the functional model `keras.Model(inputs, outputs)`."
        ) from error
    copy_state(model, copy)
    return copy


def copy_state(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    """Copies the variables and assets of a layer, and of all layers in it, to a copy of it."""
    copies = {"": new, **{site.index_path: site.layer for site in find_layer_sites(new)}}
    originals = {"": old, **{site.index_path: site.layer for site in find_layer_sites(old)}}
    copy_low_rank(originals, copies)
    shapes = [[tuple(weight.shape) for weight in layer.weights] for layer in (old, new)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"`model` must be reconstructible from its config; the copy of {old.name}, a {type(old).__name__}, has "
            f"weights of shapes {shapes[1]}, not {shapes[0]}."
        )
    for path, layer in originals.items():
        if path in copies:
            _copy_own_state(layer, copies[path])
        elif layer.weights:  # layers of preprocessing that the first call makes have none
            raise ValueError(f"`model` must be reconstructible from its config; the copy has no {layer.name}.")


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
