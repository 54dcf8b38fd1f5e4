"""Telling tensors from Python values without importing TensorFlow."""

import sys


def is_tensor(value):
    """Whether a value is a tensor of TensorFlow, dense or ragged."""
    # A tensor can only exist where TensorFlow is imported already, so plain text never pays for the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))
