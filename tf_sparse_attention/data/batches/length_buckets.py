"""Batches of sequences of like length: few rows are mostly padding, and few programs are compiled."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tf_sparse_attention.checks import check_count
from tf_sparse_attention.data.batches.random_order import BATCHES, ITEMS, random_order
from tf_sparse_attention.data.batches.sharding import shard_rows

if TYPE_CHECKING:
    import tensorflow as tf

SHORTEST = 64  # positions of the shortest bucket: below it a program more saves little


class Batch(NamedTuple):
    """The sequences of a batch.

    Attributes:
        length: positions of a row.
        items: numbers of sequences, one a row; -1 for an empty row.
    """

    length: int
    items: np.ndarray


class LengthBuckets:
    """Sequences by length: each bucket holds those that need no more than its positions.

    The lengths of buckets halve from `max_length` down to `shortest`, and a batch of half the length has twice as many
    rows, so that all batches cost about the same, few programs are compiled and, but for the shortest, no row is more
    than half padding.

    Args:
        sizes: int (number of sequences,), their lengths.
        batch_size: rows in a batch of the longest.
        max_length: the longest length; what is longer is left out, with a warning that says how many.
        shortest: the least length of a bucket. Default 64.
        names: what one sequence and one position are called in messages. Default ("pair", "token").

    Attributes:
        lengths: those of the buckets, the longest first.
        is_too_long: bool (number of sequences,), those that are left out.
        num_batches: batches that hold each sequence once.

    Raises:
        ValueError: if a size is not positive or no sequence is left.
    """

    def __init__(
        self,
        sizes: Sequence[int] | np.ndarray,
        batch_size: int,
        max_length: int,
        shortest: int = SHORTEST,
        names: tuple[str, str] = ("pair", "token"),
    ) -> None:
        for name, value in {"batch_size": batch_size, "max_length": max_length, "shortest": shortest}.items():
            check_count(name, value)
        self.batch_size, self.max_length, self._names = batch_size, max_length, names
        self.lengths = [max_length]
        while self.lengths[-1] % 2 == 0 and self.lengths[-1] // 2 >= shortest:
            self.lengths.append(self.lengths[-1] // 2)
        sizes = np.asarray(sizes)
        self._fits = np.sum(sizes[:, None] <= np.array(self.lengths), axis=1) - 1  # number of the bucket, -1 for none
        self.is_too_long = self._fits < 0
        self._report(sizes)
        self.num_batches = len(self.batches())
        self._epoch = functools.lru_cache(maxsize=2)(self._batches_of_epoch)

    def _report(self, sizes):
        item, position = self._names
        if self.is_too_long.all():
            shortest = f", of which the shortest has {sizes.min()}" if len(sizes) else ""
            raise ValueError(
                f"`max_length`, for the trainers --config.data.sequence_length, must be at least the {position}s of "
                f"some {item}{shortest}. Received: {self.max_length}."
            )
        if self.is_too_long.any():
            logging.warning(
                "%d of %d %ss are left out: they have more than %d %ss.",
                np.sum(self.is_too_long),
                len(self._fits),
                item,
                self.max_length,
                position,
            )
        used = np.unique(self._fits[self._fits >= 0])
        shapes = ", ".join(f"{self.rows(bucket)} x {self.lengths[bucket]}" for bucket in used)
        logging.info("Batches of %d shapes, for each of which a program is compiled: %s.", len(used), shapes)

    def rows(self, bucket: int) -> int:
        """Returns the rows of a batch of a bucket."""
        return self.batch_size * (self.max_length // self.lengths[bucket])

    def batches(self, order: np.ndarray | None = None) -> list[Batch]:
        """Returns the batches of the sequences in an order of their numbers; empty rows fill up each bucket's last.

        Args:
            order: int (number of sequences,). None: as they are, the order of an evaluation.
        """
        order = np.arange(len(self._fits)) if order is None else order
        found = []
        for bucket, length in enumerate(self.lengths):
            own, rows = order[self._fits[order] == bucket], self.rows(bucket)
            own = np.concatenate([own, np.full(-len(own) % rows, -1, own.dtype)])
            found += [Batch(length, part) for part in own.reshape(-1, rows)]
        return found

    def batch_of(self, step: int, seed: int) -> Batch:
        """Returns the batch of a training step, a pure function of (seed, step).

        An epoch has each sequence once; those of a batch and the order of batches are drawn for each epoch.
        """
        return self._epoch(seed, step // self.num_batches)[step % self.num_batches]

    def _batches_of_epoch(self, seed, epoch):
        batches = self.batches(random_order(seed, epoch, ITEMS, len(self._fits)))
        return [batches[number] for number in random_order(seed, epoch, BATCHES, len(batches))]

    def training_dataset(
        self,
        element: Callable[[Any, Callable[[Any], tuple[Batch, int, int]]], Any],
        seed: int,
        start_step: int = 0,
        num_steps: int | None = None,
        num_shards: int = 1,
        shard_index: int = 0,
        num_parts: int = 1,
    ) -> "tf.data.Dataset":
        """Makes the data set of the batches from a step on, endless unless `num_steps` is given.

        Args:
            element: `element(counter, part_of)` makes an element, in a graph, of its number, a scalar tensor.
                `part_of(number)` returns `(batch, step, first_row)`: the rows of this element, the step and the place
                of the first of them in the whole batch.
            seed, start_step, num_steps: see `batch_of`.
            num_shards, shard_index, num_parts: see `shard_rows`.
        """
        import tensorflow as tf

        counters = tf.data.Dataset.counter(start_step * num_parts)
        counters = counters if num_steps is None else counters.take(num_steps * num_parts)
        shard = shard_rows(self.batch_size, num_shards, shard_index, num_parts)
        return self._elements(counters, element, lambda step: self.batch_of(step, seed), (*shard, num_parts))

    def evaluation_dataset(
        self,
        element: Callable[[Any, Callable[[Any], tuple[Batch, int, int]]], Any],
        first_batch: int = 0,
        num_batches: int | None = None,
        num_shards: int = 1,
        shard_index: int = 0,
        num_parts: int = 1,
    ) -> "tf.data.Dataset":
        """Makes the data set of the batches of all sequences, each once, in the same order every time.

        Args:
            element: as in `training_dataset`.
            first_batch: index of the first batch, to resume. Default 0.
            num_batches: number of batches. None: all remaining ones.
            num_shards, shard_index, num_parts: see `shard_rows`.
        """
        import tensorflow as tf

        batches = self.batches()
        last = len(batches) if num_batches is None else min(len(batches), first_batch + num_batches)
        counters = tf.data.Dataset.range(first_batch * num_parts, max(first_batch, last) * num_parts)
        shard = shard_rows(self.batch_size, num_shards, shard_index, num_parts)
        return self._elements(counters, element, batches.__getitem__, (*shard, num_parts))

    def _elements(self, counters, element, batch_of, shard):
        """Returns the elements of a data set of counters; a shard has some rows of each batch."""
        import tensorflow as tf

        first, rows, num_parts = shard

        def part_of(counter):
            step, part = int(counter) // num_parts, int(counter) % num_parts
            batch = batch_of(step)
            times = len(batch.items) // self.batch_size  # as many rows more as the batch is shorter
            begin = times * (first + part * rows)
            return batch._replace(items=batch.items[begin : begin + times * rows]), step, begin

        elements = counters.map(lambda counter: element(counter, part_of), num_parallel_calls=2, deterministic=True)
        return elements.prefetch(tf.data.AUTOTUNE)
