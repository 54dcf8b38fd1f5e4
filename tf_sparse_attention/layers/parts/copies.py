"""Copies of the values of variables."""

import keras
from keras import ops

from tf_sparse_attention.types import Tensor


def assign_copy(variable: keras.Variable, value: keras.Variable | Tensor) -> None:
    """Gives a variable the value of another one, in memory of its own.

    On JAX `variable.assign(other)` makes both share one array, which the training step of either then gives away
    ("buffer has been deleted or donated").

    Args:
        variable: the variable to change.
        value: another variable or a tensor of the same shape; cast to the dtype of `variable`.
    """
    variable.assign(ops.copy(ops.cast(ops.convert_to_tensor(value), variable.dtype)))
