"""Tensors of TensorFlow, which is imported only where there are some."""

import sys


def is_tensor(value):
    """Whether a value is a tensor of TensorFlow, dense or ragged."""
    # A tensor can only exist where TensorFlow is imported already, so plain text never pays for the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))


def look_up(pieces, ids):
    """Returns the piece of each id, of the shape of the ids.

    Args:
        pieces: list of `bytes`, by id; the last one stands for every id outside of the others.
        ids: int tensor, dense or ragged.
    """
    import tensorflow as tf

    outside = len(pieces) - 1

    def take(values):
        inside = (values >= 0) & (values < outside)
        return tf.gather(tf.constant(pieces), tf.where(inside, values, tf.cast(outside, values.dtype)))

    return tf.ragged.map_flat_values(take, ids) if isinstance(ids, tf.RaggedTensor) else take(ids)
