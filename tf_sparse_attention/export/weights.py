"""The weights of a model in a SavedModel: unchanged, or the large ones quantized to 8 bits."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf

MIN_SIZE = 1024  # smaller weights are not quantized
INT8_MAX = 127


class Weights(tf.Module):
    """Weights of a model, and the scope in which its functions use them.

    A quantized weight is an int8 variable times a float for each row, column or channel, see `quantize`. Trainable
    weights of at least two axes and 1024 numbers are quantized; norms, biases and centroids, which decide what a query
    sees, are not.

    Args:
        model: Keras model on the TensorFlow backend.
        dtype: "int8", or None for no quantization. Default: None.
    """

    def __init__(self, model: keras.Model, dtype: str | None = None) -> None:
        super().__init__(name="weights")
        large = [variable for variable in model.trainable_variables if _is_large(variable)] if dtype == "int8" else []
        chosen = {id(variable) for variable in large}
        self.plain = [variable.value for variable in model.variables if id(variable) not in chosen]
        pairs = [quantize(keras.ops.convert_to_numpy(variable.value)) for variable in large]
        self.numbers = [tf.Variable(numbers, trainable=False) for numbers, _ in pairs]
        self.scales = [tf.Variable(scale, trainable=False) for _, scale in pairs]
        # Not as a list, in which TensorFlow would find the variables and save them too.
        self._values = functools.partial(_values, large)

    @property
    def num_bytes(self) -> int:
        """Bytes of all variables."""
        return sum(variable.shape.num_elements() * variable.dtype.size for variable in self.variables)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns a context in which the model uses these weights; every traced function enters it."""
        if not self.numbers:
            return contextlib.nullcontext()
        return keras.StatelessScope(state_mapping=self._values(self.numbers, self.scales))


def quantize(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns an array in 8 bits: int8 numbers of its shape, and float32 scales to multiply them with.

    Symmetric, the largest number is 127. Scales are shared along the first axis, the last, or all but the last: of
    those with at most 1/16 as many scales as numbers, the one with the smallest errors relative to their column.
    """
    weight = np.asarray(weight, "float32")
    columns = tuple(range(weight.ndim - 1))
    power = np.square(weight).mean(axis=columns, keepdims=True)
    found = []
    for axes in {(0,), (weight.ndim - 1,), columns}:
        scale = np.abs(weight).max(axis=axes, keepdims=True) / INT8_MAX
        scale = np.where(scale > 0, scale, 1).astype("float32")
        numbers = np.round(weight / scale).astype("int8")
        errors = np.square(numbers * scale - weight) / np.where(power > 0, power, 1)
        found.append((16 * scale.size > weight.size, float(errors.sum()), axes, numbers, scale))
    *_, numbers, scale = min(found, key=lambda entry: entry[:3])
    return numbers, scale


def _values(variables, numbers, scales):
    """Returns pairs of variables and the tensors that replace them."""
    return [
        (variable, tf.cast(tf.cast(eighth, tf.float32) * scale, variable.dtype))
        for variable, eighth, scale in zip(variables, numbers, scales, strict=True)
    ]


def _is_large(variable):
    is_float = keras.backend.is_float_dtype(variable.dtype)
    return is_float and len(variable.shape) >= 2 and int(np.prod(variable.shape)) >= MIN_SIZE
