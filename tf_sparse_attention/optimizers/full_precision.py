"""Gradients, state and updates of optimizers in float32, whatever the dtype of the weights."""

from collections.abc import Sequence

import keras
from keras import ops

from tf_sparse_attention.types import Initializer, Shape, Tensor


def dense_gradient(gradient: Tensor, shape: Shape) -> Tensor:
    """Return a gradient as a float32 tensor of the shape of its weight.

    TensorFlow gives gradients of embeddings as some of their rows; those that occur several times are summed.
    """
    gradient = ops.cast(gradient, "float32")
    if hasattr(gradient, "indices"):
        # The sum of a sparse and a dense tensor is the one way to a dense one that every backend has.
        gradient = ops.add(gradient, ops.zeros(shape, dtype="float32"))
    return ops.reshape(gradient, shape)  # unknown after TensorFlow's sum over several workers


def add_slot(
    optimizer: keras.optimizers.Optimizer,
    variable: keras.Variable,
    name: str,
    axes: Sequence[int] | None = None,
    initializer: Initializer = "zeros",
) -> keras.Variable | None:
    """Return new float32 state of an optimizer over some axes of a weight, laid out over devices as the weight is.

    Args:
        optimizer: the `keras.optimizers.Optimizer` that owns the state.
        variable: the weight.
        name: of the state; the path of the weight comes before it.
        axes: the axes of the weight that the state has. None: all.
        initializer: of the state.
    """
    if optimizer._overwrite_variable_with_gradient(variable):
        return None
    axes = range(len(variable.shape)) if axes is None else axes
    layout = None
    distribution = keras.distribution.distribution()
    if distribution is not None:
        # Looked up by name, a vector would get the layout of the matrix whose name its own begins with.
        layout = _layout_over(distribution.get_variable_layout(variable), axes)
    path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
    shape = tuple(variable.shape[axis] for axis in axes)
    return optimizer.add_variable(shape, initializer, dtype="float32", layout=layout, name=f"{path}_{name}")


def _layout_over(full, axes):
    """Return the layout of some axes of what has the layout `full`."""
    if isinstance(full, keras.distribution.TensorLayout):
        return keras.distribution.TensorLayout([full.axes[axis] for axis in axes], full.device_mesh)
    # Keras 3.13 gives what JAX has of a weight that is laid out, whose specification may leave out the last axes.
    named = dict(enumerate(full.spec))
    return type(full)(full.mesh, type(full.spec)(*(named.get(axis) for axis in axes)))


def subtract(optimizer: keras.optimizers.Optimizer, variable: keras.Variable, update: Tensor) -> None:
    """Move a weight by a float32 update, rounding once where the weight has a lower precision."""
    # Subtracted before the cast down: in bfloat16 w - d would round the step a second time.
    dtype = keras.backend.result_type(keras.backend.standardize_dtype(variable.dtype), "float32")
    value = ops.cast(variable, dtype) - ops.cast(update, dtype)
    optimizer.assign(variable, ops.cast(value, variable.dtype))
