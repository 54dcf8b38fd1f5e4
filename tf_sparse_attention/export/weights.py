"""Weights of a SavedModel, unchanged or with large weights in 8 bits."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

MIN_SIZE = 1024  # smaller weights are not quantized
INT8_MAX = 127


class Weights(tf.Module):
    """Weights of a model, and the scope in which functions use them.

    A quantized weight is an int8 variable and float32 scales, see `quantize`. Trainable weights with at least two axes
    and 1024 elements are quantized. Other weights are not: norms, biases, and centroids, which select the keys of a
    query.

    Note: Keras's `quantize("int8")` leaves adaptive embeddings and persistent vectors in float32, which makes such
    models almost twice as large.

    Args:
        model: Keras model on the TensorFlow backend.
        dtype: "int8", or None for no quantization. Default: None.
    """

    def __init__(self, model: keras.Model, dtype: str | None = None) -> None:
        super().__init__(name="weights")
        large = [variable for variable in model.trainable_variables if _is_large(variable)] if dtype == "int8" else []
        quantized = {id(variable) for variable in large}
        self.plain = [variable.value for variable in model.variables if id(variable) not in quantized]
        pairs = [quantize(keras.ops.convert_to_numpy(variable.value)) for variable in large]
        self.integers = [tf.Variable(integers, trainable=False) for integers, _ in pairs]
        self.scales = [tf.Variable(scale, trainable=False) for _, scale in pairs]
        # In a partial function, because TensorFlow would also save the variables of a list attribute.
        self._dequantize = functools.partial(_dequantize, large)

    @property
    def num_bytes(self) -> int:
        """Bytes of all variables."""
        return sum(variable.shape.num_elements() * variable.dtype.size for variable in self.variables)

    def scope(self) -> contextlib.AbstractContextManager:
        """Return a context in which the model uses these weights."""
        if not self.integers:
            return contextlib.nullcontext()
        return keras.StatelessScope(state_mapping=self._dequantize(self.integers, self.scales))


def quantize(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 values with the shape of `weight`, and float32 scales to multiply them by.

    Symmetric: the largest value is 127. Scales are shared along the first axis, the last axis, or all axes before
    the last. Of the choices with at most one scale per 16 values, it uses the choice with the smallest squared error
    relative to the mean square of each column.
    """
    weight = np.asarray(weight, "float32")
    columns = tuple(range(weight.ndim - 1))
    power = np.square(weight).mean(axis=columns, keepdims=True)
    found = []
    for axes in {(0,), (weight.ndim - 1,), columns}:
        scale = np.abs(weight).max(axis=axes, keepdims=True) / INT8_MAX
        scale = np.where(scale > 0, scale, 1).astype("float32")
        integers = np.round(weight / scale).astype("int8")
        errors = np.square(integers * scale - weight) / np.where(power > 0, power, 1)
        found.append((16 * scale.size > weight.size, float(errors.sum()), axes, integers, scale))
    *_, integers, scale = min(found, key=lambda entry: entry[:3])
    return integers, scale


def _dequantize(variables, integers, scales):
    """Return pairs of a variable and the tensor that replaces it."""
    return [
        (variable, tf.cast(tf.cast(values, tf.float32) * scale, variable.dtype))
        for variable, values, scale in zip(variables, integers, scales, strict=True)
    ]


def _is_large(variable):
    is_float = keras.backend.is_float_dtype(variable.dtype)
    return is_float and len(variable.shape) >= 2 and int(np.prod(variable.shape)) >= MIN_SIZE
