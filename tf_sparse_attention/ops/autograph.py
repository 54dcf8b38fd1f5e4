"""Exclusion of methods from TensorFlow's AutoGraph."""

from collections.abc import Callable
from typing import TypeVar

import keras

Method = TypeVar("Method", bound=Callable)


def without_autograph(method: Method) -> Method:
    """Exclude a method, and all functions it calls, from AutoGraph in a `tf.function`.

    AutoGraph converts the source of every function that a traced method calls, which takes most of the time of tracing.
    Methods of this library need no conversion, because they use no Python control flow on tensors. Keras excludes
    `Layer.__call__` in the same way. On other backends than TensorFlow, the method is returned unchanged.
    """
    if keras.backend.backend() != "tensorflow":
        return method
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(method)
