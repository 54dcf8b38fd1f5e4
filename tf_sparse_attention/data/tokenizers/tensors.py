"""Helpers for TensorFlow tensors that do not import TensorFlow for Python text."""

import sys
from typing import Any

from tf_sparse_attention.types import Tensor


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of TensorFlow, dense or ragged."""
    # A tensor can only exist if TensorFlow is imported already, so Python text never costs the import.
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(value, (tf.Tensor, tf.RaggedTensor))


def look_up(pieces: list[bytes], ids: Tensor) -> Tensor:
    """Returns the piece of each id, of the shape of the ids.

    Args:
        pieces: list of `bytes`, by id; the last one is used for all ids out of range.
        ids: int tensor, dense or ragged.
    """
    import tensorflow as tf

    outside = len(pieces) - 1

    def take(values):
        inside = (values >= 0) & (values < outside)
        return tf.gather(tf.constant(pieces), tf.where(inside, values, tf.cast(outside, values.dtype)))

    return tf.ragged.map_flat_values(take, ids) if isinstance(ids, tf.RaggedTensor) else take(ids)
