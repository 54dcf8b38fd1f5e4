"""Batches of recordings with their labels, those of like length together."""

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_seed
from tf_sparse_attention.data.batches.feature_masking import FeatureMasks
from tf_sparse_attention.data.batches.length_buckets import Batch, LengthBuckets
from tf_sparse_attention.data.batches.speech_store import SpeechStore
from tf_sparse_attention.data.batches.streams import in_background
from tf_sparse_attention.data.sources.speech_source import CHARACTER

if TYPE_CHECKING:
    import tensorflow as tf

MISSING = ("nan", "<na>")  # of pandas, in lower case as all characters
SHORTEST = 200  # frames of the shortest bucket, two seconds


class SpeechBuckets(LengthBuckets):
    """The recordings of a store by length: each bucket holds those that need no more than its frames.

    Left out are recordings without a transcript, those with one that says "nan" or "<NA>" in characters, as pandas
    writes a missing value, those whose labels have no place in their frames (one each, and a blank between equal ones
    in a row), those with unknown labels and those that are too long; the log says how many.

    Args:
        store: `SpeechStore`.
        batch_size: recordings in a batch of the longest.
        max_length: frames of the longest.
        subsampling: as many frames become one before they get labels. Default 1.

    Attributes:
        numbers: int (recordings that are left,), theirs in the store.
        left_out: how many are not, by reason: "unknown_labels", "empty", "missing_transcript",
            "more_labels_than_frames", "too_long".
        lengths, num_batches: see `LengthBuckets`.

    Raises:
        ValueError: if a size is not positive or no recording is left.

    Example:

    >>> store = open_speech_store(open_speech(path="speech.npz", data_dir="/tmp/data"), "test")
    >>> buckets = SpeechBuckets(store, batch_size=1, max_length=4608, subsampling=4)
    >>> inputs, labels, weights = next(iter(buckets.evaluation_batches()))
    """

    def __init__(self, store: SpeechStore, batch_size: int, max_length: int, subsampling: int = 1) -> None:
        check_count("subsampling", subsampling)
        self.store, self.subsampling = store, subsampling
        needed = np.array([needed_frames(store.label_ids(number)) for number in range(store.num_utterances)], "int64")
        reasons = {
            "unknown_labels": store.has_unknown,
            "empty": (store.num_labels == 0) & ~store.has_unknown,
            "missing_transcript": _says_missing(store) & ~store.has_unknown,
            "more_labels_than_frames": (needed > -(-store.num_frames // subsampling)) & ~store.has_unknown,
        }
        usable = ~np.any(list(reasons.values()), axis=0)
        self.left_out = {name: int(np.sum(found)) for name, found in reasons.items()}
        for name, count in self.left_out.items():
            if count:
                reason = name.replace("_", " ")
                logging.warning("%d of %d recordings are left out: %s.", count, store.num_utterances, reason)
        if not usable.any():
            raise ValueError(f"`store` must have recordings whose labels can be learnt. Received: {self.left_out}.")
        self.numbers = np.flatnonzero(usable)
        super().__init__(store.num_frames[usable], batch_size, max_length, SHORTEST, ("recording", "frame"))
        self.left_out["too_long"] = int(np.sum(self.is_too_long))

    @functools.cached_property
    def _label_widths(self):
        """Labels of a row of each bucket, by length: those of its recording that has most."""
        widths = dict.fromkeys(self.lengths, 1)
        for length, items in self.batches():
            own = self.store.num_labels[self.numbers[items[items >= 0]]]
            widths[length] = max(widths[length], *own.tolist(), 1)
        return widths

    def read(
        self, batch: Batch, masks: FeatureMasks | None = None, seed: tuple[int, ...] = (), first_row: int = 0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns features float32 (B, T, F), their frames int32 (B,) and labels int32 (B, U); an empty row has none.

        Args:
            batch: the recordings.
            masks: what is hidden. None: nothing.
            seed: with the place of a row in the whole batch, that of its masks.
            first_row: place of the first row in the whole batch.
        """
        rows = len(batch.items)
        features = np.zeros((rows, batch.length, self.store.num_features), np.float32)
        counts, labels = np.zeros(rows, np.int32), np.zeros((rows, self._label_widths[batch.length]), np.int32)
        for row, item in enumerate(batch.items):
            if item < 0:
                continue
            number = self.numbers[item]
            frames, ids = self.store.features(number), self.store.label_ids(number)
            if masks is not None:
                frames = masks.apply(frames, self.store.mean, (*seed, first_row + row))
            features[row, : len(frames)], counts[row], labels[row, : len(ids)] = frames, len(frames), ids
        return features, counts, labels

    def evaluation_batches(
        self, first_batch: int = 0, num_batches: int | None = None, **shard: int
    ) -> "tf.data.Dataset":
        """Returns the batches of all recordings, each once, in the same order every time.

        Args:
            first_batch: index of the first batch, to resume. Default 0.
            num_batches: number of batches. None: all remaining ones.
            **shard: `num_shards`, `shard_index` and `num_parts`, see `shard_rows`.

        Returns:
            Finite `tf.data.Dataset` of `(inputs, labels, weights)`, see `SpeechBatches`.
        """
        return self.evaluation_dataset(self.element, first_batch, num_batches, **shard)

    def element(self, counter: Any, part_of: Callable, masks: FeatureMasks | None = None, seed: int = 0) -> Any:
        """Returns the element of a counter, see `LengthBuckets.training_dataset`."""
        import tensorflow as tf

        def read(counter):
            batch, step, first_row = part_of(counter)
            return self.read(batch, masks, (seed, step), first_row)

        kinds = tf.float32, tf.int32, tf.int32
        features, counts, labels = tf.numpy_function(in_background(read), [counter], kinds, stateful=False)
        features = tf.ensure_shape(features, (None, None, self.store.num_features))
        counts, labels = tf.ensure_shape(counts, (None,)), tf.ensure_shape(labels, (None, None))
        mask = tf.range(tf.shape(features)[1]) < counts[:, None]
        return {"features": features, "padding_mask": mask}, labels, tf.cast(counts > 0, tf.float32)


class SpeechBatches:
    """Endless batches of recordings in random order; batch k is a pure function of (seed, k).

    An epoch has each recording once, in batches of like length, see `SpeechBuckets`.

    Args:
        store, batch_size, max_length, subsampling: as for `SpeechBuckets`.
        seed: integer in [0, 2**63). Default 0.
        masks: `FeatureMasks`, what is hidden of the features, drawn for each step. None: nothing.

    Attributes:
        steps_per_epoch: batches in an epoch.

    Raises:
        ValueError: as `SpeechBuckets`, and for a wrong seed or mask.

    Example:

    >>> store = open_speech_store(open_speech(path="speech.npz", data_dir="/tmp/data"), "train")
    >>> batches = SpeechBatches(store, batch_size=1, max_length=4608, subsampling=4)
    >>> inputs, labels, weights = next(iter(batches.dataset(start_step=300)))
    """

    def __init__(
        self,
        store: SpeechStore,
        batch_size: int,
        max_length: int,
        subsampling: int = 1,
        seed: int = 0,
        masks: FeatureMasks | None = None,
    ) -> None:
        check_seed(seed)
        if masks is not None:
            masks.check()
        self.buckets, self.seed, self.masks = SpeechBuckets(store, batch_size, max_length, subsampling), seed, masks
        self.steps_per_epoch = self.buckets.num_batches

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
            `tf.data.Dataset` of `(inputs, labels, weights)`: inputs {"features": float32 (B, T, F), "padding_mask":
            bool (B, T)}; labels int32 (B, U), 0 for padding; weights float32 (B,), 0 for an empty row. T and U
            go by the bucket.

        Raises:
            ValueError: If the batch cannot be divided.
        """
        shard = {"num_shards": num_shards, "shard_index": shard_index, "num_parts": num_parts}
        element = functools.partial(self.buckets.element, masks=self.masks, seed=self.seed)
        return self.buckets.training_dataset(element, self.seed, start_step, num_steps, **shard)


def _says_missing(store):
    """Returns which transcripts are what is written in place of a missing one, bool (recordings,)."""
    found = np.isin(store.num_labels, [len(text) for text in MISSING]) & (store.unit == CHARACTER)
    for number in np.flatnonzero(found):
        found[number] = store.transcript(store.label_ids(number)) in MISSING
    return found


def needed_frames(ids: np.ndarray) -> int:
    """Returns the fewest frames for labels (U,): one each, and a blank between equal ones in a row."""
    return len(ids) + int(np.sum(ids[1:] == ids[:-1]))
