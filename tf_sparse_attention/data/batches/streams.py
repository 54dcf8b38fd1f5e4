"""Batches that are functions of their number, as a `tf.data.Dataset` or, where TensorFlow is missing, without it."""

import atexit
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tf_sparse_attention.backends import has_tensorflow
from tf_sparse_attention.data.batches.sharding import shard_rows
from tf_sparse_attention.data.tokenizers.tensors import is_tensor


def batch_stream(
    element: Callable[[int, int, int], Any],
    batch_size: int,
    start: int,
    stop: int | None,
    num_shards: int = 1,
    shard_index: int = 0,
    num_parts: int = 1,
) -> Any:
    """Returns the batches of the steps `start`, `start + 1` and so on, as `keras.Model.fit` takes them.

    Args:
        element: function of a step, a first row and a number of rows, three integers, that returns these rows of the
            batch of the step: NumPy arrays in nested structures, of the same shapes and types for each step.
        batch_size: rows of the whole batch.
        start: the first step.
        stop: the step after the last; None: endless.
        num_shards, shard_index, num_parts: see `shard_rows`.

    Returns:
        `tf.data.Dataset` with static shapes, or a `BatchStream` where TensorFlow is not installed.

    Raises:
        ValueError: If the batch cannot be divided.
    """
    first_row, rows = shard_rows(batch_size, num_shards, shard_index, num_parts)

    def part(number):
        step, index = divmod(number, num_parts)
        return element(step, first_row + index * rows, rows)

    make = _as_dataset if has_tensorflow() else BatchStream
    return make(part, start * num_parts, None if stop is None else stop * num_parts)


class BatchStream(keras.utils.PyDataset):
    """Batches that `fit`, `evaluate` and a `for` loop take one after the other.

    Args:
        element: function of an integer that returns a batch.
        start: the first integer.
        stop: the integer after the last; None: endless.
    """

    def __init__(self, element: Callable[[int], Any], start: int = 0, stop: int | None = None) -> None:
        super().__init__()
        self._element, self._start, self._stop = element, start, stop

    @property
    def num_batches(self) -> int | None:
        """Number of batches, None if they never end."""
        return None if self._stop is None else self._stop - self._start

    def __getitem__(self, index: int) -> Any:
        if self._stop is not None and not 0 <= index < self._stop - self._start:
            raise IndexError(f"`index` must be in [0, {self.num_batches}). Received: index={index}.")
        return self._element(self._start + index)

    def __iter__(self) -> Iterator[Any]:
        numbers = itertools.count(self._start) if self._stop is None else range(self._start, self._stop)
        return map(self._element, numbers)

    def take(self, count: int) -> "BatchStream":
        """Returns the first batches alone."""
        stop = self._start + count
        return BatchStream(self._element, self._start, stop if self._stop is None else min(stop, self._stop))

    def map(self, function: Callable) -> "BatchStream":
        """Returns what a function makes of each batch, whose parts are its arguments."""
        return BatchStream(lambda number: function(*self._element(number)), self._start, self._stop)


class _Running:
    """Counts the batches that threads of TensorFlow are computing, so that a program can end.

    An interpreter that ends while such a thread asks for it waits for ever: TensorFlow waits for the thread when it
    clears the iterator. Once nobody takes batches a data set fills its buffer and rests, which is waited for.
    """

    REST, LIMIT = 0.05, 5.0  # seconds without a batch, and the longest wait

    def __init__(self):
        self._lock = threading.Lock()
        self._count, self._last = 0, 0.0

    def __enter__(self):
        if not self._last:
            atexit.register(self.wait)
        with self._lock:
            self._count += 1
            self._last = time.monotonic()

    def __exit__(self, *error):
        with self._lock:
            self._count -= 1
            self._last = time.monotonic()

    def wait(self):
        """Waits until no batch has been computed for a moment."""
        end = time.monotonic() + self.LIMIT
        while time.monotonic() < end and (self._count or time.monotonic() - self._last < self.REST):
            time.sleep(0.01)


_RUNNING = _Running()


def in_background(function: Callable) -> Callable:
    """Returns a function for `tf.numpy_function` in a data set: a program does not end while it runs."""

    def run(*arrays):
        with _RUNNING:
            return function(*arrays)

    return run


def _as_dataset(element, start, stop):
    import tensorflow as tf

    like = element(start)
    leaves = keras.tree.flatten(like)

    def compute(number):
        return keras.tree.flatten(element(int(number)))

    def as_tensors(number):
        made = tf.numpy_function(in_background(compute), [number], [leaf.dtype for leaf in leaves], stateful=False)
        made = [tf.ensure_shape(tensor, leaf.shape) for tensor, leaf in zip(made, leaves, strict=True)]
        return keras.tree.pack_sequence_as(like, made)

    numbers = tf.data.Dataset.counter(start) if stop is None else tf.data.Dataset.range(start, stop)
    return numbers.map(as_tensors, num_parallel_calls=2, deterministic=True).prefetch(tf.data.AUTOTUNE)


def on_arrays(function: Callable, *inputs: Any) -> Any:
    """Returns a function of NumPy arrays, applied to them or to tensors of TensorFlow, in a graph too.

    Args:
        function: of arrays of one shape; returns such arrays in nested structures.
        *inputs: arrays, or tensors.
    """
    if not any(map(is_tensor, inputs)):
        return function(*map(np.asarray, inputs))
    import tensorflow as tf

    inputs = tuple(map(tf.convert_to_tensor, inputs))
    like = function(*(np.zeros([1] * x.shape.rank, x.dtype.as_numpy_dtype) for x in inputs))
    kinds = [leaf.dtype for leaf in keras.tree.flatten(like)]
    made = tf.numpy_function(lambda *arrays: keras.tree.flatten(function(*arrays)), inputs, kinds, stateful=False)
    return keras.tree.pack_sequence_as(like, [tf.ensure_shape(tensor, inputs[0].shape) for tensor in made])
