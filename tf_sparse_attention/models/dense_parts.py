"""Reads a dense attention of Keras or KerasHub, whose classes name the same things with or without an underscore."""

import keras

from tf_sparse_attention.layers.parts.projections import input_size, part_of


def input_sizes(attention: keras.layers.Layer) -> list[int]:
    """Returns the channels of the inputs of queries, values and keys of a built dense attention."""
    return [input_size(part_of(attention, f"{name}_dense")) for name in ("query", "value", "key")]
