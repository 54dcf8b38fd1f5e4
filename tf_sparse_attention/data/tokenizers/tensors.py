"""Helpers for TensorFlow tensors that do not import TensorFlow for Python text."""

import sys
from typing import Any

from tf_sparse_attention.types import Tensor


def is_tensor(value: Any) -> bool:
    """Return whether a value is a TensorFlow tensor, dense or ragged."""
    # If TensorFlow is not imported, the value is not a tensor: Python text does not need the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))


def look_up(pieces: list[bytes], ids: Tensor) -> Tensor:
    """Return the piece of each id, in the shape of `ids`.

    Args:
        pieces: list of `bytes`, by id; the last one is for all ids out of range.
        ids: int tensor, dense or ragged.
    """
    import tensorflow as tf

    outside = len(pieces) - 1

    def take(values):
        inside = (values >= 0) & (values < outside)
        return tf.gather(tf.constant(pieces), tf.where(inside, values, tf.cast(outside, values.dtype)))

    return tf.ragged.map_flat_values(take, ids) if isinstance(ids, tf.RaggedTensor) else take(ids)
