"""float32 gradients, state and updates of optimizers, for weights of any dtype."""

from collections.abc import Sequence

import keras
from keras import ops

from tf_sparse_attention.types import Initializer, Shape, Tensor


def dense_gradient(gradient: Tensor, shape: Shape) -> Tensor:
    """Convert a gradient to a dense float32 tensor of the shape of its weight.

    On TensorFlow, gradients of embeddings are `IndexedSlices`. Repeated rows are summed.
    """
    gradient = ops.cast(gradient, "float32")
    if hasattr(gradient, "indices"):
        # The sum with a dense tensor is the only conversion that every backend has.
        gradient = ops.add(gradient, ops.zeros(shape, dtype="float32"))
    return ops.reshape(gradient, shape)  # TensorFlow loses the shape in the sum over several workers


def add_slot(
    optimizer: keras.optimizers.Optimizer,
    variable: keras.Variable,
    name: str,
    axes: Sequence[int] | None = None,
    initializer: Initializer = "zeros",
) -> keras.Variable | None:
    """Add a float32 slot over some axes of a weight, with the device layout of the weight.

    Args:
        optimizer: the `keras.optimizers.Optimizer` that owns the slot.
        variable: the weight.
        name: name of the slot, appended to the path of the weight.
        axes: axes of the weight that the slot has. None: all.
        initializer: initializer of the slot.

    Returns:
        The slot, or None if Keras overwrites the weight with its gradient.
    """
    if optimizer._overwrite_variable_with_gradient(variable):
        return None
    axes = range(len(variable.shape)) if axes is None else axes
    layout = None
    distribution = keras.distribution.distribution()
    if distribution is not None:
        # By name, a vector would match the layout of the matrix whose path is a prefix of its path.
        layout = _layout_over(distribution.get_variable_layout(variable), axes)
    path = getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")
    shape = tuple(variable.shape[axis] for axis in axes)
    return optimizer.add_variable(shape, initializer, dtype="float32", layout=layout, name=f"{path}_{name}")


def _layout_over(full, axes):
    """Return the layout of some axes of a weight with layout `full`."""
    if isinstance(full, keras.distribution.TensorLayout):
        return keras.distribution.TensorLayout([full.axes[axis] for axis in axes], full.device_mesh)
    # Keras 3.13 returns a JAX sharding, whose specification may omit the last axes.
    named = dict(enumerate(full.spec))
    return type(full)(full.mesh, type(full.spec)(*(named.get(axis) for axis in axes)))


def subtract(optimizer: keras.optimizers.Optimizer, variable: keras.Variable, update: Tensor) -> None:
    """Subtract a float32 update from a weight, with one rounding if the weight has lower precision."""
    # The cast comes last: in bfloat16, w - d would round the step a second time.
    dtype = keras.backend.result_type(keras.backend.standardize_dtype(variable.dtype), "float32")
    value = ops.cast(variable, dtype) - ops.cast(update, dtype)
    optimizer.assign(variable, ops.cast(value, variable.dtype))
