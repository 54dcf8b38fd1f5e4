"""Reads a dense attention of Keras or KerasHub, whose classes name the same things with or without an underscore."""

from typing import Any

import keras

from tf_sparse_attention.layers.parts.projections import input_size


def part_of(attention: keras.layers.Layer, name: str, default: Any = None) -> Any:
    """Returns an attribute of a dense attention, which may have an underscore before its name."""
    return getattr(attention, name, getattr(attention, f"_{name}", default))


def input_sizes(attention: keras.layers.Layer) -> list[int]:
    """Returns the channels of the inputs of queries, values and keys of a built dense attention."""
    return [input_size(part_of(attention, f"{name}_dense")) for name in ("query", "value", "key")]
