"""Which axis of each weight of the models is split over devices."""

import re
from typing import Any

import keras

# What a path ends with, the rank of the weight, and the axes to split it by, the best first: that which the layers on
# both sides compute with without an exchange, then one that saves as much memory. No path matches two rows.
RULES = (
    # (D, N, H): heads, then what comes in.
    (r"((window_|compressed_|global_)?(query|key|value)|branch_gate|(?<!feed_forward/)gate)/kernel", 3, (1, 0)),
    (r"((window_|compressed_|global_)?(query|key|value)|branch_gate|(?<!feed_forward/)gate)/bias", 2, (0,)),
    (r"sinks", 1, (0,)),
    (r"key_convolution/kernel", 3, (1,)),  # (K, N, H)
    (r"attention_output/kernel", 3, (0, 2)),  # (N, H, D): heads, then what goes out
    (r"(persistent|vectors)/(key|value)", 3, (0, 1)),  # (N, M, H)
    (r"clusters(_\d+)?/(centroids|sums)", 3, (0,)),  # (N, C, H)
    (r"clusters(_\d+)?/(counts|unused)", 2, (0,)),
    (r"span/fraction", 1, (0,)),
    (r"feed_forward/(inner|gate)/kernel", 2, (1, 0)),
    (r"feed_forward/(inner|gate)/bias", 1, (0,)),
    (r"feed_forward/output/kernel", 2, (0, 1)),
    (r"(token_)?embedding/embeddings", 2, (0, 1)),  # (V, D): words, then what goes out
    (r"embeddings_\d+", 2, (0, 1)),  # of adaptive embeddings and softmaxes, as the next two
    (r"projection_\d+", 2, (1, 0)),
    (r"to_vocabulary/bias_\d+", 1, (0,)),
    (r"(projection|to_embedding|to_vocabulary)/kernel", 2, (1, 0)),
    (r"(projection|to_embedding|to_vocabulary)/bias", 1, (0,)),
    (r"output_bias", 1, (0,)),
)


def layout_map(device_mesh: keras.distribution.DeviceMesh, model_axis: str = "model") -> keras.distribution.LayoutMap:
    """Return how the weights of the models and layers of this library are split over the devices of a mesh.

    Attention is split over heads (queries, keys, values, gates, sinks, centroids, persistent vectors, output kernels),
    feed-forward layers over what is inside of them, embeddings and logits over the vocabulary. All else is whole on
    every device: norms, positions, directions of hashes, biases that are added to a sum, frame subsampling, and what
    encoder tasks add to an encoder. Optimizers lay out their state as
    the weight it belongs to, those of `tsa.optimizers` the factors of a matrix too.

    `keras.distribution.ModelParallel` needs a mesh that divides heads, sizes and vocabulary. The one of this package
    splits another axis where it does not.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`, usually of two axes, for batches and for models.
        model_axis: name of the axis of the mesh over which a model is split. Default "model".

    Returns:
        A `keras.distribution.LayoutMap`, by what paths of weights end with. More rows can be added to it.

    Raises:
        ValueError: If `device_mesh` is no mesh, or has no such axis.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
    >>> layouts = layout_map(mesh)
    >>> layouts["backbone/block_0/attention/local_0/query/kernel"].axes
    (None, 'model', None)
    """
    if not isinstance(device_mesh, keras.distribution.DeviceMesh):
        raise ValueError(f"`device_mesh` must be a `keras.distribution.DeviceMesh`. Received: {device_mesh!r}.")
    if model_axis not in device_mesh.axis_names:
        raise ValueError(
            "`model_axis` must be an axis of the mesh. "
            f"Received: model_axis={model_axis!r}, a mesh with the axes {', '.join(device_mesh.axis_names)}."
        )
    layouts = keras.distribution.LayoutMap(device_mesh)
    for ending, rank, (axis, *_) in RULES:
        axes = tuple(model_axis if index == axis else None for index in range(rank))
        layouts[f"(.*/)?{ending}"] = keras.distribution.TensorLayout(axes, device_mesh)
    return layouts


def split_axes(path: str, rank: int) -> tuple[int, ...]:
    """Return the axes that a weight of this path and rank can be split by, the best first; none where it is whole."""
    for ending, rule_rank, axes in RULES:
        if rank == rule_rank and re.fullmatch(f"(.*/)?{ending}", path):
            return axes
    return ()


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
        """Return the layout of a weight, a `keras.distribution.TensorLayout`."""
        layout = super().get_variable_layout(variable)
        names = {axis: name for axis, name in enumerate(layout.axes) if name is not None}
        if all(self._divides(variable.shape, axis, name) for axis, name in names.items()):
            return layout
        axes: list[str | None] = [None] * len(variable.shape)
        name = next(iter(names.values()))
        for axis in split_axes(variable.path, len(axes)):
            if self._divides(variable.shape, axis, name):
                axes[axis] = name
                break
        return keras.distribution.TensorLayout(tuple(axes), self.device_mesh)

    def _divides(self, shape, axis, name):
        """Return whether a shape has this axis, and the devices along a named axis of the mesh divide it."""
        num_devices = self.device_mesh.shape[self.device_mesh.axis_names.index(name)]
        return axis < len(shape) and shape[axis] % num_devices == 0
