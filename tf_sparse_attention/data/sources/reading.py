"""Reads what TFDS prepared, always in the same order, with TensorFlow or without it."""

from collections.abc import Iterator
from typing import Any

from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.tfds_preparation import is_array_record, iterate


def read_feature(builder: Any, split: str, feature: str) -> Iterator[Any]:
    """Iterates over the values of a feature, `bytes` of a text and arrays of others.

    Args:
        builder: `tfds.core.DatasetBuilder`, prepared.
        split: name of a split, or a part of one in the syntax of TFDS.
        feature: name of the feature.

    Raises:
        ValueError: If the data set has no such split.
        ImportError: If it was prepared in a format that TensorFlow alone reads, and TensorFlow is not installed.
    """
    check_split(builder, split)
    if is_array_record(builder):
        return (example[feature] for example in iterate(builder.as_data_source(split=split), builder))
    examples = examples_in_order(builder, split)
    values = examples.map(lambda example: example[feature]).prefetch(2)
    return iterate(values.as_numpy_iterator(), builder)


def examples_in_order(builder: Any, split: str) -> Any:
    """Returns the examples of a split of a prepared builder as a `tf.data.Dataset`, always in the same order.

    Raises:
        ValueError: If the data set has no such split.
        ImportError: If TensorFlow is not installed.
    """
    check_split(builder, split)
    if not has_tensorflow():
        raise ImportError(
            f"{builder.info.full_name} was prepared as {builder.info.file_format.value}, which TensorFlow alone reads. "
            "Install it, or have the data prepared anew in another folder: `data_dir`, for the trainers "
            "--config.data.data_dir=FOLDER."
        )
    # Files are read sequentially: an order that depends on the number of readers is not reproducible.
    config = import_tfds().ReadConfig(interleave_cycle_length=1, try_autocache=False)
    return builder.as_dataset(split=split, shuffle_files=False, read_config=config)


def check_split(builder: Any, split: str) -> None:
    """Raises a `ValueError` unless a prepared data set has a split; a stand-in (`mock_data`) may name none."""
    known = builder.info.splits
    if known and split.split("[")[0] not in known:
        raise ValueError(
            f"`split` must be one of {', '.join(known)} in {builder.info.full_name}, or a part of one, such as "
            f"train[:90%] and train[90%:]. Received: split={split}."
        )
