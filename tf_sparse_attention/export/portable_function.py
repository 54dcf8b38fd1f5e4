"""One function of LiteRT and ONNX files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class PortableFunction(NamedTuple):
    """One function of a file.

    Attributes:
        run: `tf.function` of tensors in the order of `inputs`; returns a dictionary of tensors by name.
        inputs: list of `tf.TensorSpec` with the names of the file's inputs.
        draw: function of a `np.random.Generator` and the number of a call, from 0, to inputs to compare outputs on, by
            name. Those that it lacks are outputs of calls before, by the same name or with "new_" before it, or zeros.
        num_calls: calls in which outputs are compared.
    """

    run: Any
    inputs: list[tf.TensorSpec]
    draw: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    num_calls: int = 1


def make_function(
    run: Callable, inputs: list[tf.TensorSpec], draw: Callable[..., Any], num_calls: int = 1
) -> PortableFunction:
    """Returns the `PortableFunction` of a function of tensors, which is traced when it is needed."""
    return PortableFunction(tf.function(run, input_signature=inputs, autograph=False), inputs, draw, num_calls)


def draw_ids(random: np.random.Generator, spec: tf.TensorSpec, vocabulary_size: int) -> dict[str, np.ndarray]:
    """Returns random ids for an input, by its name."""
    return {spec.name: random.integers(vocabulary_size, size=spec.shape, dtype="int32")}


def draw_counts(random: np.random.Generator, spec: tf.TensorSpec, most: int) -> dict[str, np.ndarray]:
    """Returns random numbers from 1 to `most` for an input, by its name."""
    return {spec.name: random.integers(1, most + 1, size=spec.shape, dtype="int32")}
