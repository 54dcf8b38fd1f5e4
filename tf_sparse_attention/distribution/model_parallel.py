"""Model parallelism for weights whose sizes the devices do not divide."""

from typing import Any

import keras

from tf_sparse_attention.distribution.layouts import axes_to_split


class ModelParallel(keras.distribution.ModelParallel):
    """`keras.distribution.ModelParallel` that splits no axis that the devices do not divide.

    Where the layout map says one, such as six heads over four devices, the next axis of the rule of `layout_map` is
    split in its place (the features that come in), and without a rule, or an axis that is divided, the weight stays
    whole on every device. The state of optimizers is laid out as the weights are.

    The batch is split over the other axis of the mesh. Results are those of one device, to rounding.

    Args:
        layout_map: `keras.distribution.LayoutMap`, such as that of `tsa.distribution.layout_map`.
        batch_dim_name: axis of the mesh over which batches are split. Default: its first.
        auto_shard_dataset: whether Keras divides data sets among several processes. Default True.

    Raises:
        ValueError: If the backend is not JAX.

    Example:

        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))  # 8 devices
        layouts = tsa.distribution.layout_map(mesh)
        keras.distribution.set_distribution(tsa.distribution.ModelParallel(layout_map=layouts))
        model = ...  # made, compiled and trained as on one device
    """

    def __init__(self, *, layout_map: keras.distribution.LayoutMap, **kwargs: Any) -> None:
        if keras.backend.backend() != "jax":
            raise ValueError(
                "`tsa.distribution.ModelParallel` needs the JAX backend: set the variable KERAS_BACKEND=jax. "
                f"Received: {keras.backend.backend()}."
            )
        super().__init__(layout_map=layout_map, **kwargs)

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        """Returns the layout of a weight, a `keras.distribution.TensorLayout`."""
        layout = super().get_variable_layout(variable)
        names = {axis: name for axis, name in enumerate(layout.axes) if name is not None}
        if all(self._divides(variable.shape, axis, name) for axis, name in names.items()):
            return layout
        axes: list[str | None] = [None] * len(variable.shape)
        name = next(iter(names.values()))
        for axis in axes_to_split(variable.path, len(axes)):
            if self._divides(variable.shape, axis, name):
                axes[axis] = name
                break
        return keras.distribution.TensorLayout(tuple(axes), self.device_mesh)

    def _divides(self, shape, axis, name):
        """Returns whether a shape has this axis, and the devices along a named axis of the mesh divide it."""
        num_devices = self.device_mesh.shape[self.device_mesh.axis_names.index(name)]
        return axis < len(shape) and shape[axis] % num_devices == 0
