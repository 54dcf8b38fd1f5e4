"""The dense layers around attention, with the names, kernels and biases of `keras.layers.MultiHeadAttention`."""

import keras
from keras import ops

OBJECTS = {
    "kernel_initializer": keras.initializers,
    "bias_initializer": keras.initializers,
    "kernel_regularizer": keras.regularizers,
    "bias_regularizer": keras.regularizers,
    "activity_regularizer": keras.regularizers,
    "kernel_constraint": keras.constraints,
    "bias_constraint": keras.constraints,
}


def objects_of(arguments):
    """Returns the initializers, regularizers and constraints that `arguments` name, by argument."""
    return {name: module.get(arguments[name]) for name, module in OBJECTS.items()}


def config_of(objects):
    """Returns the serialised form of what `objects_of` returned."""
    return {name: module.serialize(objects[name]) for name, module in OBJECTS.items()}


def fresh(initializer):
    """Returns a copy of an initializer: one with a seed gives the same values each time it is called."""
    return type(initializer).from_config(initializer.get_config())


def input_projection(name, input_shape, num_heads, size, use_bias, objects, dtype):
    """Returns a built projection of (B, T, D) to (B, T, N, H): kernel (D, N, H), bias (N, H)."""
    layer = keras.layers.EinsumDense(
        "abc,cde->abde",
        output_shape=(None, num_heads, size),
        bias_axes="de" if use_bias else None,
        name=name,
        dtype=dtype,
        **_arguments(objects),
    )
    return _built(layer, input_shape)


def output_projection(name, input_shape, output_sizes, use_bias, objects, dtype):
    """Returns a built projection of (B, T, N, H) to (B, T, *output_sizes): kernel (N, H, *output_sizes)."""
    letters = "efghijklmnopqrstuvwxyz"[: len(output_sizes)]
    layer = keras.layers.EinsumDense(
        f"abcd,cd{letters}->ab{letters}",
        output_shape=(None, *output_sizes),
        bias_axes=letters if use_bias else None,
        name=name,
        dtype=dtype,
        **_arguments(objects),
    )
    return _built(layer, input_shape)


def _built(layer, input_shape):
    layer.supports_masking = True  # each position for itself; otherwise Keras warns that a mask gets lost
    layer.build(input_shape)
    return layer


def _arguments(objects):
    copies = {name: fresh(objects[name]) for name in ("kernel_initializer", "bias_initializer")}
    return {**objects, **copies}


def heads_first(x):
    """Returns (B, T, N, H) as (B, N, T, H), the order in which blocks are fastest; its own inverse."""
    return ops.transpose(x, (0, 2, 1, 3))
