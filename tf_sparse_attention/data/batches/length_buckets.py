"""Batches of sequences of similar length, with little padding and few shapes to compile."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_seed
from tf_sparse_attention.data.batches.batches import Batches, Rows
from tf_sparse_attention.data.batches.random_order import BATCHES, ITEMS, random_order

SHORTEST = 64  # positions of the shortest bucket: shorter buckets save little time


class LengthBuckets:
    """Sequences in buckets of similar length.

    Bucket lengths are `max_length`, `max_length` / 2 and so on: all integers of at least `shortest`. A batch of half
    the length has twice as many rows. All batches then cost about the same, few shapes are compiled, and only rows of
    the shortest bucket can be more than half padding. A subclass defines `read(rows)`, which returns
    `(inputs, targets, weights)`; empty rows have weight 0.

    Args:
        sizes: int (num_sequences,), length of each sequence.
        batch_size: rows per batch in the longest bucket.
        max_length: length of the longest bucket. Longer sequences are left out; a warning reports their number.
        shortest: minimum length of a bucket. Default 64.
        names: names of a sequence and of a position in messages. Default ("pair", "token").

    Attributes:
        lengths: lengths of the buckets, longest first.
        is_too_long: bool (num_sequences,), whether a sequence is left out.
        num_batches: number of batches per epoch.

    Raises:
        ValueError: If a size is not positive or no sequence is left.
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
        self._buckets = np.sum(sizes[:, None] <= np.array(self.lengths), axis=1) - 1  # -1: too long
        self.is_too_long = self._buckets < 0
        self._report(sizes)
        self.num_batches = len(self.plans())

    def _report(self, sizes):
        item, position = self._names
        if self.is_too_long.all():
            shortest = f", {sizes.min()}" if len(sizes) else ""
            raise ValueError(
                f"`max_length` (`data.sequence_length` in a configuration) must be at least the number of {position}s "
                f"in the shortest {item}{shortest}. Received: {self.max_length}."
            )
        if self.is_too_long.any():
            counts = f"{self.is_too_long.sum()} of {len(sizes)} {item}s"
            logging.warning("%s are left out: they have more than %d %ss.", counts, self.max_length, position)
        used = np.unique(self._buckets[self._buckets >= 0])
        shapes = ", ".join(f"{self._num_rows(bucket)} x {self.lengths[bucket]}" for bucket in used)
        logging.info("Batches have %d shapes, which are compiled separately: %s.", len(used), shapes)

    def _num_rows(self, bucket):
        return self.batch_size * (self.max_length // self.lengths[bucket])

    def plans(self, order: np.ndarray | None = None) -> list[Rows]:
        """Return the rows of all batches of an epoch. Empty rows complete the last batch of each bucket.

        Args:
            order: int (num_sequences,), permutation of the sequences. Default: None, the given order.
        """
        order = np.arange(len(self._buckets)) if order is None else order
        plans: list[Rows] = []
        for bucket, length in enumerate(self.lengths):
            members, num_rows = order[self._buckets[order] == bucket], self._num_rows(bucket)
            members = np.concatenate([members, np.full(-len(members) % num_rows, -1, members.dtype)])
            for items in members.reshape(-1, num_rows):
                plans.append(Rows(len(plans), items, length=length))
        return plans

    read: Callable[..., Any]  # arguments: `Rows` and options of a subclass

    def training_batches(self, seed: int = 0, **options: Any) -> Batches:
        """Return infinite batches in random order. An epoch contains each sequence once.

        Args:
            seed: integer in [0, 2**63). Default 0.
            **options: arguments of `read`.

        Raises:
            ValueError: If the seed is out of range.
        """
        check_seed(seed)

        @functools.lru_cache(maxsize=2)
        def epoch_plans(epoch):
            plans = self.plans(random_order(seed, epoch, ITEMS, len(self._buckets)))
            return [plans[number] for number in random_order(seed, epoch, BATCHES, len(plans))]

        def plan(step):
            epoch, number = divmod(step, self.num_batches)
            return epoch_plans(epoch)[number]._replace(step=step)

        read = functools.partial(self.read, **options)
        return Batches(plan, read, steps_per_epoch=self.num_batches, has_fixed_shapes=False)

    def evaluation_batches(self, **options: Any) -> Batches:
        """Return batches of all sequences in a fixed order.

        Args:
            **options: arguments of `read`.
        """
        read = functools.partial(self.read, **options)
        return Batches(self.plans().__getitem__, read, self.num_batches, has_fixed_shapes=False)
