"""Numbered batches and the Grain data sets that deliver them, and checks of the ids of a `tf.data.Dataset`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tf_sparse_attention.checks import check_count

ENDLESS = 2**62  # number of batches of an infinite data set
NUM_THREADS, PREFETCH = 2, 4  # reader threads, and batches in the buffer


class Rows(NamedTuple):
    """Rows of a batch before they are read.

    Attributes:
        step: number of the batch.
        items: int64 (B,), the item in each row, such as the number of a window or of a recording; -1: an empty row.
        first: index of the first of these rows in the unsharded batch. Default 0.
        length: positions in each row. Default 0, if all batches have the same length.
    """

    step: int
    items: np.ndarray
    first: int = 0
    length: int = 0


@dataclasses.dataclass(eq=False)
class Batches:
    """Numbered batches, each a pure function of its number.

    Training can start at any step, and a resumed run gets the batches of an uninterrupted run. `batches[k]` is batch
    k, `(inputs, targets, weights)` as NumPy arrays.

    Args:
        plan: function from a batch number to the `Rows` of the batch.
        read: function from `Rows` to `(inputs, targets, weights)`.
        num_batches: number of batches. Default: None, infinite.
        steps_per_epoch: number of batches per epoch. Default: None, `num_batches`.
        has_fixed_shapes: whether all batches have the same shapes. Default True.

    Example:

    >>> batches = tsa.data.training_batches(store, batch_size=8, sequence_length=1024)
    >>> model.fit(batches.dataset(start=300), steps_per_epoch=100, shuffle=False)
    """

    plan: Callable[[int], Rows]
    read: Callable[[Rows], Any]
    num_batches: int | None = None
    steps_per_epoch: int | None = None
    has_fixed_shapes: bool = True

    def __post_init__(self) -> None:
        if self.steps_per_epoch is None:
            self.steps_per_epoch = self.num_batches

    def __getitem__(self, number: int) -> Any:
        return self.read(self.plan(number))

    def shard(self, index: int, count: int) -> "Batches":
        """Return a shard: process `index` of `count` gets an equal part of the rows of each batch.

        Raises:
            ValueError: If `count` does not divide the rows of a batch.
        """
        check_count("count", count)
        if not 0 <= index < count:
            raise ValueError(f"`index` must be in [0, count). Received: index={index}, count={count}.")
        num_rows = len(self.plan(0).items)
        if num_rows % count:
            raise ValueError(
                f"`count` must divide the rows of a batch. Received: count={count}, batches of {num_rows} rows."
            )

        def plan(number):
            rows = self.plan(number)
            size = len(rows.items) // count
            part = rows.items[index * size : (index + 1) * size]
            return rows._replace(items=part, first=rows.first + index * size)

        return dataclasses.replace(self, plan=plan)

    def map(self, function: Callable[..., Any]) -> "Batches":
        """Apply `function(inputs, targets, weights)` to each batch."""
        return dataclasses.replace(self, read=lambda rows: function(*self.read(rows)))

    def dataset(self, start: int = 0, stop: int | None = None) -> Any:
        """Return the batches in order as a data set for `fit`, `evaluate` and `predict`.

        Args:
            start: number of the first batch. Default 0.
            stop: number after the last batch. Default: None, all batches.

        Returns:
            `tf.data.Dataset` on TensorFlow, otherwise the Grain data set of `grain_dataset`.
        """
        import keras

        dataset = self.grain_dataset(start, stop)
        if keras.backend.backend() != "tensorflow":
            return dataset
        # Keras would infer shapes from two Grain batches and make the batch size dynamic, which TPUs do not support.
        import tensorflow as tf

        def spec(array):
            shape = array.shape if self.has_fixed_shapes else (*(None for _ in array.shape[:2]), *array.shape[2:])
            return tf.TensorSpec(shape, array.dtype)

        tf_dataset = tf.data.Dataset.from_generator(
            lambda: iter(dataset), output_signature=keras.tree.map_structure(spec, self[0])
        )
        count = max(0, self._stop(stop) - start)
        is_endless = count > ENDLESS // 2
        return tf_dataset.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY if is_endless else count)
        )

    def grain_dataset(self, start: int = 0, stop: int | None = None) -> Any:
        """Return the batches from `start` to `stop` as a `grain.IterDataset`. Two threads read four batches ahead."""
        import grain

        numbers = grain.MapDataset.range(start, max(start, self._stop(stop)))
        options = grain.ReadOptions(num_threads=NUM_THREADS, prefetch_buffer_size=PREFETCH)
        return numbers.map(self.__getitem__).to_iter_dataset(options)

    def _stop(self, stop):
        return min(ENDLESS if limit is None else limit for limit in (stop, self.num_batches))


def consecutive_rows(batch_size: int, count: int | None = None) -> Callable[[int], Rows]:
    """Return the plan of batches of consecutive items. Rows are empty from item `count` on."""

    def plan(number):
        items = number * batch_size + np.arange(batch_size, dtype="int64")
        return Rows(number, items if count is None else np.where(items < count, items, -1))

    return plan


OUT_OF_RANGE = "token ids from 0 to"  # part of the error message


def is_dataset(x: Any) -> bool:
    """Return whether `x` is a `tf.data.Dataset`, without importing TensorFlow."""
    return any(kind.__module__.startswith("tensorflow.") and kind.__name__ == "DatasetV2" for kind in type(x).__mro__)


def check_dataset(dataset: Any, vocabulary_size: int) -> Any:
    """Add a check to a `tf.data.Dataset`: reading a batch with ids outside the vocabulary is an error.

    Elements are inputs, or tuples that begin with inputs. Inputs are token ids, or a dictionary with "token_ids".
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
