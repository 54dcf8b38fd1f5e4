"""Projections of attention layers, with the names, kernels and biases of `keras.layers.MultiHeadAttention`."""

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_sparse_attention.checks import check_dense
from tf_sparse_attention.layers.parts.adaptation import copy_low_rank, sublayer_policy
from tf_sparse_attention.layers.parts.call_inputs import sequence_shape
from tf_sparse_attention.layers.parts.variables import assign_copy
from tf_sparse_attention.ops.shapes import max_size, pad_axis, shape, slice_axis
from tf_sparse_attention.types import Config, Initializer, Shape, Tensor

NAMES = ("query", "key", "value", "gate", "attention_output")
OBJECTS = {
    "kernel_initializer": keras.initializers,
    "bias_initializer": keras.initializers,
    "kernel_regularizer": keras.regularizers,
    "bias_regularizer": keras.regularizers,
    "activity_regularizer": keras.regularizers,
    "kernel_constraint": keras.constraints,
    "bias_constraint": keras.constraints,
}

# Paths of Keras attention layers in a weights file.
KERAS_GROUP = re.compile(r"(^|/)(multi_head|grouped_query)_attention(_\d+)?/vars$")


class Projection(keras.layers.EinsumDense):
    """Projection of an attention layer, which can also be loaded from the weights file of a Keras attention layer.

    The file lists the layers of a functional or sequential model by class. Keras finds nothing at `dense_attention` if
    the file has `multi_head_attention`. The projection then searches the file for the Keras attention layer with the
    name `attention_name`.

    Args:
        attention_name: name of the attention layer.
        **kwargs: arguments of `keras.layers.EinsumDense`.
    """

    def __init__(self, attention_name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention_name = attention_name

    def load_own_variables(self, store: Any) -> None:
        if not store.keys():
            # Only HDF5 files record the names of layers.
            path = self._path_in_file(store.h5_file) if hasattr(store, "h5_file") else None
            if path is None:
                raise ValueError(
                    f"The file has no weights of `{self.name}` of `{self.attention_name}`, nor exactly one Keras "
                    f"attention layer named '{self.attention_name}'. Give this layer the name of the layer in "
                    "the file, or load the file into the Keras layer and call `copy_projections(keras_layer)`."
                )
            store = store.get(path)
        super().load_own_variables(store)

    def _path_in_file(self, file: Any) -> str | None:
        """Return the path of this projection if the file has exactly one Keras attention layer of this name."""
        groups = []

        def visit(path: str) -> None:
            if KERAS_GROUP.search(path) and file[path].attrs.get("name") == self.attention_name:
                groups.append(path.removesuffix("/vars"))

        file.visit(visit)
        if len(groups) != 1:
            return None
        names = (name for name in file[groups[0]] if name.endswith("_dense"))
        paths = (f"{groups[0]}/{name}" for name in names)
        return next((path for path in paths if file[f"{path}/vars"].attrs.get("name") == self.name), None)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras rejects subclasses


def resolve_objects(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the initializers, regularizers and constraints among constructor arguments, by name."""
    return {name: module.get(arguments[name]) for name, module in OBJECTS.items()}


def serialize_objects(objects: dict[str, Any]) -> Config:
    """Serialize the result of `resolve_objects`."""
    return {name: module.serialize(objects[name]) for name, module in OBJECTS.items()}


def clone_initializer(initializer: Initializer) -> Initializer:
    """Return a copy of an initializer. An initializer with a seed returns the same values in each call."""
    return type(initializer).from_config(initializer.get_config())


def input_projection(
    attention: keras.layers.Layer,
    name: str,
    input_shape: Shape,
    num_heads: int,
    size: int,
    use_bias: bool,
    objects: dict[str, Any],
) -> keras.layers.EinsumDense:
    """Build a projection from (B, T, D) to (B, T, N, H), with kernel (D, N, H) and bias (N, H)."""
    return _build_projection(
        attention,
        name,
        input_shape,
        objects,
        equation="abc,cde->abde",
        output_shape=(None, num_heads, size),
        bias_axes="de" if use_bias else None,
    )


def output_projection(
    attention: keras.layers.Layer,
    name: str,
    input_shape: Shape,
    output_sizes: Sequence[int],
    use_bias: bool,
    objects: dict[str, Any],
) -> keras.layers.EinsumDense:
    """Build a projection from (B, T, N, H) to (B, T, *output_sizes), with kernel (N, H, *output_sizes)."""
    letters = "efghijklmnopqrstuvwxyz"[: len(output_sizes)]
    return _build_projection(
        attention,
        name,
        input_shape,
        objects,
        equation=f"abcd,cd{letters}->ab{letters}",
        output_shape=(None, *output_sizes),
        bias_axes=letters if use_bias else None,
    )


def relative_tables(
    layer: keras.layers.Layer, num_rows: int, objects: dict[str, Any]
) -> tuple[keras.Variable | None, ...]:
    """Create the relative position tables for keys and values (Shaw et al. 2018). None: the layer has no table."""
    keys = relative_table(layer, "relative_key", num_rows, objects)  # first, which is the order in weights files
    if not layer.has_relative_values:
        return keys, None
    return keys, relative_table(layer, "relative_value", num_rows, objects, layer.value_dim)


def relative_table(
    layer: keras.layers.Layer, name: str, num_rows: int, objects: dict[str, Any], size: int | None = None
) -> keras.Variable:
    """Create a relative position table, a weight (num_rows, size). The default size is `key_dim`."""
    initializer = clone_initializer(objects["kernel_initializer"])
    return layer.add_weight(name=name, shape=(num_rows, size or layer.key_dim), initializer=initializer)


def _build_projection(attention, name, input_shape, objects, **arguments):
    """Build a dense sublayer, a `Projection` if the attention layers of Keras also have it."""
    copies = {key: clone_initializer(objects[key]) for key in ("kernel_initializer", "bias_initializer")}
    arguments |= {**objects, **copies, "name": name, "dtype": sublayer_policy(attention, name)}
    if name in NAMES:
        layer = Projection(attention_name=attention.name, **arguments)
    else:
        layer = keras.layers.EinsumDense(**arguments)
    layer.supports_masking = True  # without it, Keras warns that the mask is lost
    layer.build(input_shape)
    return layer


def output_spec(
    layer: keras.layers.Layer, output_shape: Shape, query: Tensor, value: Tensor | None, return_attention_scores: bool
) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return the symbolic output of an attention layer, optionally with the weights (B, N, T, S)."""
    output = keras.KerasTensor(output_shape, dtype=layer.compute_dtype)
    if not return_attention_scores:
        return output
    lengths = (sequence_shape(layer, x.shape)[1] for x in (query, query if value is None else value))
    sizes = (query.shape[0], layer.num_heads, *lengths)
    return output, keras.KerasTensor(sizes, dtype=layer.compute_dtype)


def heads_first(x: Tensor) -> Tensor:
    """Transpose (B, T, N, H) to (B, N, T, H), the fastest order for blocks, or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def heads_of(projection: keras.layers.Layer, x: Tensor) -> Tensor:
    """Project tokens (B, T, D) to heads (B, N, T, H)."""
    check_dense(projection.name, x)
    return heads_first(_project(projection, x))


def join_heads(projection: keras.layers.Layer, heads: Tensor) -> Tensor:
    """Project attended heads (B, N, T, Hv) to the output (B, T, D)."""
    heads = heads_first(heads)
    # With a bias XLA does not emit the slow loop described in `_project`.
    return _project(projection, heads) if projection.bias is None else projection(heads)


def _project(projection, x):
    """Apply a projection to tokens (B, T, ...).

    A single token is computed as two tokens, because TensorFlow's XLA emits a plain loop for a vector times a kernel
    (D, N, H) or (N, H, D). The loop is ten times slower on CPU. JAX is not affected.
    """
    if x.shape[1] != 1 or keras.backend.backend() != "tensorflow":
        return projection(x)
    batch = shape(x)[0]
    result = projection(pad_axis(x, -len(x.shape), 0, max_size(2 - batch, 0)))
    return slice_axis(result, -len(result.shape), 0, batch)


def build_for(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Build `target`, if it is not built, for the inputs of a built `source`."""
    sources = [_projections_by_name(source).get(name) for name in ("query", "value", "key")]
    if not target.built and all(projection is not None and projection.built for projection in sources):
        target.build(*((None, None, _input_size(projection)) for projection in sources))


def _input_size(projection):
    return projection.kernel.shape[input_axis(projection)]


def input_axis(projection: keras.layers.Layer) -> int:
    """Return the axis of the input channels in a kernel. In Gemma it follows the axis of the heads."""
    if not isinstance(projection, keras.layers.EinsumDense):
        return 0
    inputs, kernel = projection.equation.split("->")[0].split(",")
    return kernel.index(inputs[-1])


def _move_inputs_first(projections, name, weight):
    """Move the axis of the input channels to the front in the weight of an input projection."""
    projection, weight_name = name.split("/")
    if projection == "attention_output" or weight_name not in ("kernel", "lora_kernel_a"):
        return weight
    return ops.moveaxis(weight, 1, 0) if input_axis(projections[projection]) else weight


def copy(source: keras.layers.Layer, target: keras.layers.Layer, heads: slice = slice(None)) -> None:
    """Copy the weights of the projections of a built attention layer.

    Args:
        source: layer with the sublayers `query`, `key`, `value`, `attention_output` and optionally `gate`.
        target: attention layer of this library, which is built for the input sizes of `source`.
        heads: slice of the heads of `source` that become the heads of `target`.

    Raises:
        ValueError: unless both have the same projections with the same shapes.
    """
    build_for(source, target)
    dense = _projections_by_name(source)
    copy_low_rank(dense, _projections_by_name(target))
    old = {name: _move_inputs_first(dense, name, weight) for name, weight in _weights_by_name(source).items()}
    old = {name: _slice_heads(name, weight, heads, source) for name, weight in old.items()}
    new = _weights_by_name(target)
    if "key/bias" in new and "query/bias" in old:
        # A key bias of zeros equals no key bias: it adds the same number to all scores of a query.
        old.setdefault("key/bias", ops.zeros(new["key/bias"].shape))
    if not target.use_output_bias and heads.start:
        old.pop("attention_output/bias", None)  # only the first part of a `MixedAttention` has an output bias
    shapes = [{name: tuple(weight.shape) for name, weight in weights.items()} for weights in (old, new)]
    if not new or not old or shapes[0] != shapes[1]:
        raise ValueError(
            "`attention` must be built and have the projections of this layer. "
            f"Received: {_differences(*shapes) or 'none'}."
        )
    for name, weight in new.items():
        assign_copy(weight, old[name])


def copy_trainable(source: keras.layers.Layer, target: keras.layers.Layer) -> None:
    """Set `trainable` of the projections of `target` as in `source`."""
    trainable = {name: weight.trainable for name, weight in _weights_by_name(source).items()}
    for weight in target.weights:
        weight.trainable = trainable.get(_short_name(weight), weight.trainable)


def _differences(old, new):
    """Describe the differences between two dictionaries of shapes."""
    found = []
    for name in {**new, **old}:
        if name not in old or name not in new:
            found.append(f"no {name}" if name not in old else f"{name}, which this layer does not have")
        elif old[name] != new[name]:
            found.append(f"{name} of shape {old[name]}, not {new[name]}")
    return "; ".join(found)


def get_attribute(attention: keras.layers.Layer, name: str, default: Any = None) -> Any:
    """Return an attribute of an attention layer of Keras or KerasHub, whose name may have a leading underscore."""
    return getattr(attention, name, getattr(attention, f"_{name}", default))


def head_count(layer: keras.layers.Layer) -> int | None:
    """Return the number of query heads of an attention layer. None for other layers."""
    return get_attribute(layer, "num_query_heads", get_attribute(layer, "num_heads"))


def input_sizes(attention: keras.layers.Layer) -> list[int]:
    """Return the input channels of the query, value and key of a built attention layer of Keras or KerasHub."""
    return [_input_size(get_attribute(attention, f"{name}_dense")) for name in ("query", "value", "key")]


def input_size(attention: keras.layers.Layer) -> int:
    """Return the input channels of a built self-attention: of its first projection, which is that of the queries."""
    first = next(layer for layer in attention._flatten_layers(include_self=False) if hasattr(layer, "kernel"))
    return _input_size(first)


def _slice_heads(name, weight, heads, attention):
    """Select some of the query heads, or their key heads, from a projection weight."""
    projection, weight_name = name.split("/")
    if heads == slice(None) or name == "attention_output/bias" or weight_name == "lora_kernel_b":
        return weight
    if projection in ("key", "value"):
        size = head_count(attention) // weight.shape[-2]  # (D, M, H) or (M, H)
        heads = slice(heads.start // size, -(-heads.stop // size))
    return weight[heads] if projection == "attention_output" or weight_name == "bias" else weight[:, heads]


def _projections_by_name(layer):
    return {inner.name: inner for inner in layer._flatten_layers(include_self=False) if inner.name in NAMES}


def _weights_by_name(layer):
    """Return the weights of the projections of a layer by name, such as "attention_output/bias"."""
    found = {}
    for weight in layer.weights:
        name = _short_name(weight)
        if name.split("/")[0] not in NAMES:
            continue
        if name in found:
            raise ValueError(
                f"`attention` must have one projection per name. Received: {layer.name} with several {name}."
            )
        found[name] = weight
    return found


def _short_name(weight):
    """Return the last two names in the path of a weight, such as "query/kernel"."""
    return "/".join(["", *weight.path.split("/")][-2:])
