"""Batches of pairs of documents, those of like length together: for models from one sequence to another."""

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_sparse_attention.checks import check_seed, check_switch
from tf_sparse_attention.data.batches.length_buckets import Batch, LengthBuckets
from tf_sparse_attention.data.batches.prefixes import join_pairs, pack_prefixes
from tf_sparse_attention.data.batches.streams import in_background
from tf_sparse_attention.data.batches.token_store import TokenStore

if TYPE_CHECKING:
    import tensorflow as tf


class PairBuckets(LengthBuckets):
    """The pairs of two token stores by length: each bucket holds those that need no more than its positions.

    Args:
        source: `TokenStore`, document i of which belongs to document i of `target`.
        target: `TokenStore`.
        batch_size: pairs in a batch of the longest.
        max_length: tokens of the longest source and target; pairs in which one is longer are left out, with a warning
            that says how many.
        as_prefix: whether a pair is one sequence, the target after its source, for a language model, see
            `pack_prefixes`; `max_length` is then that of both together. Default False: two, for an encoder-decoder, see
            `pack_pairs`.

    Attributes:
        num_empty: how many pairs have an empty text as their "source" and "target"; the log says so. They are read as
            all others: of an empty text the end id is left.
        lengths, is_too_long, num_batches: see `LengthBuckets`.

    Raises:
        ValueError: if the stores have different numbers of documents, a size is not positive or no pair is left.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> english, french = (open_token_store(side, ByteTokenizer(), "train") for side in pairs)
    >>> buckets = PairBuckets(english, french, batch_size=2, max_length=4096)
    >>> inputs, targets, weights = next(iter(buckets.evaluation_batches()))
    """

    def __init__(
        self, source: TokenStore, target: TokenStore, batch_size: int, max_length: int, as_prefix: bool = False
    ) -> None:
        check_switch("as_prefix", as_prefix)
        if source.num_documents != target.num_documents:
            raise ValueError(
                "`source` and `target` must have as many documents, which are pairs. "
                f"Received: {source.num_documents} and {target.num_documents}."
            )
        self.source, self.target, self.as_prefix = source, target, as_prefix
        both = [np.diff(store.document_offsets) for store in (source, target)]
        self.num_empty = {side: int(np.sum(sizes <= 1)) for side, sizes in zip(("source", "target"), both, strict=True)}
        for side, count in self.num_empty.items():
            if count:
                logging.warning("%d of %d pairs have an empty %s; none is left out.", count, len(both[0]), side)
        sizes = np.add(*both) if as_prefix else np.maximum(*both)
        super().__init__(sizes, batch_size, max_length)

    def read(self, batch: Batch, use_source: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Returns what `pack_pairs`, or `pack_prefixes`, takes of a batch, each document with its end id.

        Args:
            batch: from `batches` or `batch_of`; empty rows are the last.
            use_source: whether sources are read. False: each is its end id alone.
        """
        rows, length = len(batch.items), batch.length
        pairs = [
            (self.source.document(pair)[0 if use_source else -1 :], self.target.document(pair))
            for pair in batch.items[batch.items >= 0]
        ]
        if self.as_prefix:
            return join_pairs(pairs, rows, length)
        sides = np.zeros((2, rows, length), np.int32)
        for row, pair in enumerate(pairs):
            for side, document in zip(sides, pair, strict=True):
                side[row, : len(document)] = document
        return sides[0], sides[1]

    def evaluation_batches(
        self, use_source: bool = True, first_batch: int = 0, num_batches: int | None = None, **shard: int
    ) -> "tf.data.Dataset":
        """Returns the batches of all pairs, each once, in the same order every time.

        Args:
            use_source: whether sources are read. False: each is its end id alone, to see what they are worth.
            first_batch: index of the first batch, to resume. Default 0.
            num_batches: number of batches. None: all remaining ones.
            **shard: `num_shards`, `shard_index` and `num_parts`, see `shard_rows`.

        Returns:
            Finite `tf.data.Dataset` of `(inputs, targets, weights)`, see `pack_pairs` and `pack_prefixes`.
        """
        element = functools.partial(self.element, use_source=use_source)
        return self.evaluation_dataset(element, first_batch, num_batches, **shard)

    def element(self, counter: Any, part_of: Callable, use_source: bool = True) -> Any:
        """Returns the element of a counter, see `LengthBuckets.training_dataset`."""
        import tensorflow as tf

        def read(counter):
            return self.read(part_of(counter)[0], use_source)

        kinds, pack = ((tf.int32, tf.bool), pack_prefixes) if self.as_prefix else ((tf.int32, tf.int32), pack_pairs)
        sides = tf.numpy_function(in_background(read), [counter], kinds, stateful=False)
        return pack(*(tf.ensure_shape(side, (None, None)) for side in sides))


class PairBatches:
    """Endless batches of pairs in random order; batch k is a pure function of (seed, k).

    An epoch has each pair once, in batches of like length, see `PairBuckets`; the pairs of a batch and the order of
    batches are drawn for each epoch.

    Args:
        buckets: `PairBuckets`.
        seed: integer in [0, 2**63). Default 0.

    Attributes:
        steps_per_epoch: batches in an epoch.

    Raises:
        ValueError: for a seed out of range.

    Example:

    >>> pairs = open_pairs("en", "fr", path="manpages.jsonl", data_dir="/tmp/data")
    >>> english, french = (open_token_store(side, ByteTokenizer(), "train") for side in pairs)
    >>> batches = PairBatches(PairBuckets(english, french, batch_size=2, max_length=4096))
    >>> inputs, targets, weights = next(iter(batches.dataset(start_step=300)))
    """

    def __init__(self, buckets: PairBuckets, seed: int = 0) -> None:
        check_seed(seed)
        self.buckets, self.seed = buckets, seed
        self.steps_per_epoch = buckets.num_batches

    def batch_of(self, step: int) -> Batch:
        """Returns the pairs of a step."""
        return self.buckets.batch_of(step, self.seed)

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
            `tf.data.Dataset` of `(inputs, targets, weights)`, see `pack_pairs` and `pack_prefixes`, of shapes that
            differ by batch.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        shard = {"num_shards": num_shards, "shard_index": shard_index, "num_parts": num_parts}
        return self.buckets.training_dataset(self.buckets.element, self.seed, start_step, num_steps, **shard)


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
