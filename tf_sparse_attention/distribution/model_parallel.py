"""Model parallelism on JAX: the layout of weights over devices."""

import re
from typing import Any

import keras

# End of the path, rank of the weight, and axes to split in order of preference: first the axis that needs no
# communication between adjacent layers, then one that saves the same memory. No path matches two rows.
RULES = (
    # (D, N, H): heads, then input features.
    (r"((window_|compressed_|global_)?(query|key|value)|branch_gate|(?<!feed_forward/)gate)/kernel", 3, (1, 0)),
    (r"((window_|compressed_|global_)?(query|key|value)|branch_gate|(?<!feed_forward/)gate)/bias", 2, (0,)),
    (r"sinks", 1, (0,)),
    (r"key_convolution/kernel", 3, (1,)),  # (K, N, H)
    (r"attention_output/kernel", 3, (0, 2)),  # (N, H, D): heads, then output features
    (r"(persistent|vectors)/(key|value)", 3, (0, 1)),  # (N, M, H)
    (r"clusters(_\d+)?/(centroids|sums)", 3, (0,)),  # (N, C, H)
    (r"clusters(_\d+)?/(counts|unused)", 2, (0,)),
    (r"span/fraction", 1, (0,)),
    (r"feed_forward/(inner|gate)/kernel", 2, (1, 0)),
    (r"feed_forward/(inner|gate)/bias", 1, (0,)),
    (r"feed_forward/output/kernel", 2, (0, 1)),
    (r"(token_)?embedding/embeddings", 2, (0, 1)),  # (V, D): words, then output features
    (r"embeddings_\d+", 2, (0, 1)),  # adaptive embedding and softmax, like the next two rows
    (r"projection_\d+", 2, (1, 0)),
    (r"to_vocabulary/bias_\d+", 1, (0,)),
    (r"(projection|to_embedding|to_vocabulary)/kernel", 2, (1, 0)),
    (r"(projection|to_embedding|to_vocabulary)/bias", 1, (0,)),
    (r"output_bias", 1, (0,)),
)


def layout_map(device_mesh: keras.distribution.DeviceMesh, model_axis: str = "model") -> keras.distribution.LayoutMap:
    """Return the layout of the weights of this library's models and layers over a device mesh.

    Attention is split over heads: query, key, value and output kernels, gates, sinks, centroids, persistent vectors.
    Feed-forward layers are split over their hidden units, embeddings and logits over the vocabulary. All other weights
    are replicated: norms, positions, hash directions, biases of outputs, frame subsampling, and the heads of encoder
    tasks. Optimizer state has the layout of its weight; this includes the factored moments of `tsa.optimizers`.

    `keras.distribution.ModelParallel` requires the number of heads, the number of hidden units and the vocabulary size
    to be divisible by the size of the model axis. If one of these numbers is not divisible,
    `tsa.distribution.ModelParallel` splits another axis of the weight.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`, usually with two axes, for data and model parallelism.
        model_axis: name of the mesh axis over which the model is split. Default "model".

    Returns:
        A `keras.distribution.LayoutMap` whose keys match the end of weight paths. You can add more entries.

    Raises:
        ValueError: if `device_mesh` is not a mesh, or does not have the axis.

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
    """Return the axes along which a weight of this path and rank can be split, best first; empty if replicated."""
    for ending, rule_rank, axes in RULES:
        if rank == rule_rank and re.fullmatch(f"(.*/)?{ending}", path):
            return axes
    return ()


class ModelParallel(keras.distribution.ModelParallel):
    """`keras.distribution.ModelParallel` that also shards weights with axes not divisible by the number of devices.

    If the number of devices does not divide an axis (six heads, four devices), another axis of the weight is split,
    usually the input-feature axis. The library has a fixed order of axes per weight. If none of these axes is
    divisible, the weight is replicated. Optimizer state has the layout of its weight.

    The batch is split over the mesh axis `batch_dim_name`. Results equal those of one device, up to rounding.

    Args:
        layout_map: `keras.distribution.LayoutMap`, for example from `tsa.distribution.layout_map`.
        batch_dim_name: mesh axis over which batches are split. Default: the first axis.
        auto_shard_dataset: whether Keras splits data sets among processes. Default True.

    Raises:
        ValueError: if the backend is not JAX.

    Example:

        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))  # 8 devices
        layouts = tsa.distribution.layout_map(mesh)
        keras.distribution.set_distribution(tsa.distribution.ModelParallel(layout_map=layouts))
        model = ...  # created, compiled and trained as on one device
    """

    def __init__(self, *, layout_map: keras.distribution.LayoutMap, **kwargs: Any) -> None:
        if keras.backend.backend() != "jax":
            raise ValueError(
                "`keras.backend.backend()` must be 'jax' for `tsa.distribution.ModelParallel`: set KERAS_BACKEND=jax. "
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
        """Return whether a shape has this axis and the devices along a named mesh axis divide its size."""
        num_devices = self.device_mesh.shape[self.device_mesh.axis_names.index(name)]
        return axis < len(shape) and shape[axis] % num_devices == 0
