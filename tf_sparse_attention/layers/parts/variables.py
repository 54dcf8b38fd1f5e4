"""Seeds and dtypes of state that is not trained, and random numbers of a call."""

import random
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.types import Shape, Tensor


def state_dtype(layer: keras.layers.Layer) -> str:
    """Returns the dtype of state that needs full precision: float32, or float64 in a float64 layer."""
    return "float64" if layer.variable_dtype == "float64" else "float32"


def drawn_seed(seed: int | None) -> int:
    """Returns `seed`, or a new one for None: what a layer draws with it then is part of its configuration."""
    return random.randrange(2**31) if seed is None else seed


def dropout_of_call(layer: keras.layers.Layer, training: bool | None) -> Dropout | None:
    """Returns the `Dropout` of attention weights in a call of a layer, None outside training."""
    return Dropout(layer.dropout, layer._seeds) if training and layer._seeds is not None else None


def random_directions(layer: keras.layers.Layer, name: str, shape: Shape, seed: int | None = None) -> keras.Variable:
    """Returns a new weight of normal numbers, not trained: the axes or planes of a hash.

    Drawn with `seed`, by default that of `layer`. float32 whatever the dtype policy (float64 under float64), as hashes
    of half precision would be coarse.
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
    """Gives a variable the value of another one, in memory of its own.

    On JAX `variable.assign(other)` makes both share one array, which the training step of either then gives away
    ("buffer has been deleted or donated").

    Args:
        variable: the variable to change.
        value: another variable or a tensor of the same shape; cast to the dtype of `variable`.
    """
    variable.assign(ops.copy(ops.cast(ops.convert_to_tensor(value), variable.dtype)))


def deserialize_unbuilt(serialized: dict[str, Any]) -> keras.layers.Layer:
    """Returns the layer of a serialised form, not built: so the paths of its weights begin with what it will be in."""
    return keras.saving.deserialize_keras_object({**serialized, "build_config": None})
