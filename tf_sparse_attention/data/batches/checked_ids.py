"""Checks of the token ids in a `tf.data.Dataset`."""

from typing import Any

OUT_OF_RANGE = "token ids from 0 to"  # part of the error message


def is_dataset(x: Any) -> bool:
    """Return whether `x` is a `tf.data.Dataset`, without importing TensorFlow."""
    return any(kind.__module__.startswith("tensorflow.") and kind.__name__ == "DatasetV2" for kind in type(x).__mro__)


def check_dataset(dataset: Any, vocabulary_size: int) -> Any:
    """Add a check to a dataset: reading a batch with ids outside the vocabulary is an error.

    Args:
        dataset: `tf.data.Dataset` of inputs, or of tuples that begin with inputs. Inputs are token ids, or a dictionary
            with "token_ids".
        vocabulary_size: V.
    """
    import tensorflow as tf

    def check(inputs, *others):
        ids = inputs.get("token_ids") if isinstance(inputs, dict) else inputs
        if isinstance(ids, tf.Tensor) and ids.dtype.is_integer:
            inside = tf.reduce_all((ids >= 0) & (tf.cast(ids, tf.int64) < vocabulary_size))
            with tf.control_dependencies([tf.debugging.Assert(inside, [f"{OUT_OF_RANGE} {vocabulary_size - 1}"])]):
                ids = tf.identity(ids)
            inputs = {**inputs, "token_ids": ids} if isinstance(inputs, dict) else ids
        return (inputs, *others) if others else inputs

    return dataset.map(check)
