"""Search for the attention layers of a model."""

import keras

from tf_sparse_attention.layers import AttentionLayer


def attention_layers(layer: keras.layers.Layer) -> list[AttentionLayer]:
    """Return the attention layers of this library in a layer, in order of creation, which Keras's search reverses."""
    return list({id(found): found for found in _inside(layer)}.values())


def _inside(layer):
    if isinstance(layer, AttentionLayer):
        return [layer]
    inner = layer._flatten_layers(recursive=False, include_self=False)
    return [found for part in inner for found in _inside(part)]
