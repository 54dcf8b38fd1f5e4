"""Batches of pairs of documents, those of like length together: for models from one sequence to another."""

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tf_sparse_attention.checks import check_count
from tf_sparse_attention.data.batches.sharding import shard_rows
from tf_sparse_attention.data.batches.token_store import TokenStore

if TYPE_CHECKING:
    import tensorflow as tf

SHORTEST = 64  # tokens of the shortest bucket: below it a program more saves little


class Batch(NamedTuple):
    """The pairs of a batch.

    Attributes:
        length: positions of a row, source and target.
        pairs: numbers of documents, one a row; -1 for an empty row.
    """

    length: int
    pairs: np.ndarray


class PairBuckets:
    """The pairs of two token stores by length: each bucket holds those that need no more than its positions.

    The lengths of buckets halve from `max_length` down to 64, and a batch of half the length has twice as many rows, so
    that all batches cost about the same and few programs are compiled.

    Args:
        source: `TokenStore`, document i of which belongs to document i of `target`.
        target: `TokenStore`.
        batch_size: pairs in a batch of the longest.
        max_length: tokens of the longest source and target; pairs in which one is longer are left out, with a warning
            that says how many.

    Attributes:
        is_too_long: bool (number of pairs,), those that are left out.
        num_batches: batches that hold each pair once.

    Raises:
        ValueError: if the stores have different numbers of documents, a size is not positive or no pair is left.
    """

    def __init__(self, source: TokenStore, target: TokenStore, batch_size: int, max_length: int) -> None:
        check_count("batch_size", batch_size)
        check_count("max_length", max_length)
        if source.num_documents != target.num_documents:
            raise ValueError(
                "`source` and `target` must have as many documents, which are pairs. "
                f"Received: {source.num_documents} and {target.num_documents}."
            )
        self.source, self.target, self.batch_size, self.max_length = source, target, batch_size, max_length
        sizes = np.maximum(*(np.diff(store.document_offsets) for store in (source, target)))
        self.lengths = [max_length]
        while self.lengths[-1] % 2 == 0 and self.lengths[-1] // 2 >= SHORTEST:
            self.lengths.append(self.lengths[-1] // 2)
        self._fits = np.sum(sizes[:, None] <= np.array(self.lengths), axis=1) - 1  # number of the bucket, -1 for none
        self.is_too_long = self._fits < 0
        if self.is_too_long.all():
            raise ValueError(f"`max_length` must be at least the tokens of some pair. Received: {max_length}.")
        if self.is_too_long.any():
            logging.warning(
                "%d of %d pairs are left out: one of their documents has more than %d tokens.",
                np.sum(self.is_too_long),
                len(sizes),
                max_length,
            )
        used = np.unique(self._fits[self._fits >= 0])
        shapes = ", ".join(f"{self.rows(bucket)} x {self.lengths[bucket]}" for bucket in used)
        logging.info("Batches of %d shapes, for each of which a program is compiled: %s.", len(used), shapes)
        self.num_batches = len(self.batches(np.arange(len(sizes))))

    def rows(self, bucket: int) -> int:
        """Returns the rows of a batch of a bucket."""
        return self.batch_size * (self.max_length // self.lengths[bucket])

    def batches(self, order: np.ndarray) -> list[Batch]:
        """Returns the batches of the pairs in an order of their numbers; empty rows fill up the last of each bucket."""
        found = []
        for bucket, length in enumerate(self.lengths):
            own, rows = order[self._fits[order] == bucket], self.rows(bucket)
            own = np.concatenate([own, np.full(-len(own) % rows, -1, own.dtype)])
            found += [Batch(length, part) for part in own.reshape(-1, rows)]
        return found

    def read(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sources and the targets of a batch, int32 (B, length) each, each document with its end id."""
        sides = np.zeros((2, len(batch.pairs), batch.length), np.int32)
        for row, pair in enumerate(batch.pairs):
            for side, store in zip(sides, (self.source, self.target), strict=True):
                document = store.document(pair) if pair >= 0 else ()
                side[row, : len(document)] = document
        return sides[0], sides[1]


class PairBatches:
    """Endless batches of pairs in random order; batch k is a pure function of (seed, k).

    An epoch has each pair once, in batches of like length, see `PairBuckets`; the pairs of a batch and the order of
    batches are drawn for each epoch.

    Args:
        source, target, batch_size, max_length: as for `PairBuckets`.
        seed: integer in [0, 2**63). Default 0.

    Attributes:
        steps_per_epoch: batches in an epoch.

    Raises:
        ValueError: as `PairBuckets`, and for a seed out of range.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> english, french = (open_token_store(side, ByteTokenizer(), "train") for side in pairs)
    >>> batches = PairBatches(english, french, batch_size=2, max_length=4096)
    >>> inputs, targets, weights = next(iter(batches.dataset(start_step=300)))
    """

    def __init__(self, source: TokenStore, target: TokenStore, batch_size: int, max_length: int, seed: int = 0) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"`seed` must be in [0, 2**63). Received: seed={seed}.")
        self.buckets, self.seed = PairBuckets(source, target, batch_size, max_length), seed
        self.steps_per_epoch = self.buckets.num_batches
        self._epoch = functools.lru_cache(maxsize=2)(self._batches_of_epoch)

    def batch_of(self, step: int) -> Batch:
        """Returns the pairs of a step."""
        return self._epoch(step // self.steps_per_epoch)[step % self.steps_per_epoch]

    def _batches_of_epoch(self, epoch):
        order = np.argsort(_mixed(self.seed, epoch, self.buckets.source.num_documents), kind="stable")
        batches = self.buckets.batches(order)
        turns = np.argsort(_mixed(self.seed + 1, epoch, len(batches)), kind="stable")
        return [batches[turn] for turn in turns]

    def dataset(
        self,
        start_step: int = 0,
        num_steps: int | None = None,
        num_shards: int = 1,
        shard_index: int = 0,
        num_parts: int = 1,
    ) -> "tf.data.Dataset":
        """Makes the data set of the batches from a step on.

        Args:
            start_step: the first step.
            num_steps: number of steps. None: endless. Default: None.
            num_shards, shard_index, num_parts: see `shard_rows`.

        Returns:
            `tf.data.Dataset` of `(inputs, targets, weights)`, see `pack_pairs`, of shapes that differ by batch.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        import tensorflow as tf

        first, rows = shard_rows(self.buckets.batch_size, num_shards, shard_index, num_parts)
        dataset = tf.data.Dataset.counter(start_step * num_parts)
        dataset = dataset if num_steps is None else dataset.take(num_steps * num_parts)
        return _read_batches(dataset, self.buckets, self.batch_of, (first, rows, num_parts))


def pair_evaluation_batches(
    source: TokenStore,
    target: TokenStore,
    batch_size: int,
    max_length: int,
    use_source: bool = True,
    first_batch: int = 0,
    num_batches: int | None = None,
    num_shards: int = 1,
    shard_index: int = 0,
    num_parts: int = 1,
) -> "tf.data.Dataset":
    """Returns the batches of all pairs, each once, in the same order every time.

    Args:
        source, target, batch_size, max_length: as for `PairBuckets`.
        use_source: whether sources are read. False: each is its end id alone, to see what they are worth.
        first_batch: index of the first batch, to resume. Default 0.
        num_batches: number of batches. None: all remaining ones.
        num_shards, shard_index, num_parts: see `shard_rows`.

    Returns:
        Finite `tf.data.Dataset` of `(inputs, targets, weights)`, see `pack_pairs`.
    """
    import tensorflow as tf

    first, rows = shard_rows(batch_size, num_shards, shard_index, num_parts)
    buckets = PairBuckets(source, target, batch_size, max_length)
    batches = buckets.batches(np.arange(source.num_documents))
    last = len(batches) if num_batches is None else min(len(batches), first_batch + num_batches)
    counters = tf.data.Dataset.range(first_batch * num_parts, max(first_batch, last) * num_parts)
    return _read_batches(counters, buckets, batches.__getitem__, (first, rows, num_parts), use_source)


def _read_batches(counters, buckets, batch_of, shard, use_source=True):
    """Returns the batches of a data set of counters: those of `batch_of` for a step, of which a shard has some rows."""
    import tensorflow as tf

    first, rows, num_parts = shard

    def read(counter):
        batch = batch_of(int(counter) // num_parts)
        times = len(batch.pairs) // buckets.batch_size  # as many rows more as the batch is shorter
        begin = times * (first + int(counter) % num_parts * rows)
        sources, targets = buckets.read(batch._replace(pairs=batch.pairs[begin : begin + times * rows]))
        if not use_source:
            sources = np.where(np.arange(batch.length) == 0, np.where(sources[:, :1] > 0, buckets.source.end_id, 0), 0)
        return sources.astype(np.int32), targets

    def element(counter):
        sources, targets = tf.numpy_function(read, [counter], (tf.int32, tf.int32), stateful=False)
        return pack_pairs(tf.ensure_shape(sources, (None, None)), tf.ensure_shape(targets, (None, None)))

    return counters.map(element, num_parallel_calls=2, deterministic=True).prefetch(tf.data.AUTOTUNE)


def pack_pairs(sources: "tf.Tensor", targets: "tf.Tensor") -> "tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]":
    """Returns inputs, targets and weights of a `tsa.models.SequenceToSequence`.

    Args:
        sources: int32 (B, S), 0 for padding on the right.
        targets: int32 (B, T), likewise.

    Returns:
        `(inputs, targets, weights)`: inputs {"encoder_token_ids", "encoder_padding_mask", "decoder_token_ids",
        "decoder_padding_mask"}, where decoder inputs are the targets moved right by one with id 0 first; weights
        float32 (B, T), 1 on tokens and 0 on padding.
    """
    import tensorflow as tf

    exists = tf.not_equal(targets, 0)
    inputs = {
        "encoder_token_ids": sources,
        "encoder_padding_mask": tf.not_equal(sources, 0),
        "decoder_token_ids": tf.where(exists, tf.pad(targets[:, :-1], [[0, 0], [1, 0]]), 0),
        "decoder_padding_mask": exists,
    }
    return inputs, targets, tf.cast(exists, tf.float32)


def _mixed(seed, epoch, count):
    """Returns random uint64 (count,) of a seed and an epoch, the same everywhere: SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(epoch) * np.uint64(0xD1342543DE82EF95)
        x = state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        return x ^ (x >> np.uint64(31))
