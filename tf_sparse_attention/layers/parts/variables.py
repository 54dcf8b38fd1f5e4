"""Dtypes, seeds and copies of variables, and deserialization of sublayers."""

import random
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.types import Shape, Tensor


def state_dtype(layer: keras.layers.Layer) -> str:
    """Return the dtype of state that needs full precision: float32, or float64 in a float64 layer."""
    return "float64" if layer.variable_dtype == "float64" else "float32"


def drawn_seed(seed: int | None) -> int:
    """Return `seed`, or a random seed for None, which becomes part of the layer's config."""
    return random.randrange(2**31) if seed is None else seed


def random_directions(layer: keras.layers.Layer, name: str, shape: Shape, seed: int | None = None) -> keras.Variable:
    """Create a non-trainable weight of normal numbers: the directions of a hash.

    Args:
        layer: the layer that owns the weight.
        name: name of the weight.
        shape: shape of the weight.
        seed: integer seed. None: the seed of the layer.

    Returns:
        Variable, float32 (float64 in a float64 layer), because hashes in half precision are coarse.
    """
    return layer.add_weight(
        name=name,
        shape=shape,
        initializer=keras.initializers.RandomNormal(stddev=1.0, seed=layer.seed if seed is None else seed),
        dtype=state_dtype(layer),
        autocast=False,
        trainable=False,
    )


def assign_copy(variable: keras.Variable, value: keras.Variable | Tensor) -> None:
    """Assign a copy of a value to a variable.

    On JAX, `variable.assign(other)` makes both variables share one array, which the training step of either then
    donates ("buffer has been deleted or donated").

    Args:
        variable: the variable to change.
        value: another variable or a tensor of the same shape; cast to the dtype of `variable`.
    """
    variable.assign(ops.copy(ops.cast(ops.convert_to_tensor(value), variable.dtype)))


def deserialize_unbuilt(serialized: dict[str, Any]) -> keras.layers.Layer:
    """Deserialize a layer without building it, so that the paths of its weights start with the outer layer."""
    return keras.saving.deserialize_keras_object({**serialized, "build_config": None})
