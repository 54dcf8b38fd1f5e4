"""Batches of recordings with labels, in buckets of similar length."""

import dataclasses
import functools
import logging

import numpy as np

from tf_sparse_attention.checks import check_count, check_not_negative, check_seed
from tf_sparse_attention.data.batches.batches import Rows
from tf_sparse_attention.data.batches.length_buckets import LengthBuckets
from tf_sparse_attention.data.sources.speech_source import CHARACTER
from tf_sparse_attention.data.speech_store import SpeechStore


@dataclasses.dataclass(frozen=True)
class FeatureMasks:
    """Masked time and frequency bands, as in SpecAugment (Park et al. 2019) without time warping.

    Note: differs from the paper in that the number of time bands depends on the length of the recording.

    Args:
        time_masks: time bands per 1,000 frames, at least one. Default 0: none.
        time_width: maximum frames in a time band. Bands are also limited to a fifth of the recording. Default 40.
        frequency_masks: number of frequency bands. Default 0.
        frequency_width: maximum features in a frequency band. All bands together never mask all features. Default 8.
        seed: integer in [0, 2**63). Default 0.

    Raises:
        ValueError: If a number is negative, a width is 0, or the seed is out of range.
    """

    time_masks: float = 0.0
    time_width: int = 40
    frequency_masks: int = 0
    frequency_width: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("time_masks", self.time_masks)
        check_count("frequency_masks", self.frequency_masks, minimum=0)
        for name in ("time_width", "frequency_width"):
            check_count(name, getattr(self, name))
        check_seed(self.seed)

    def apply(self, features: np.ndarray, fill: np.ndarray, step: int, row: int) -> np.ndarray:
        """Return a copy of features with masked bands.

        Args:
            features: float32 (T, F).
            fill: float32 (F,), the values of masked bands: the mean of each feature.
            step, row: step and row of the batch, which change the bands.
        """
        rng, masked = np.random.default_rng((self.seed, step, row)), np.array(features)
        num_frames, num_features = masked.shape
        for _ in range(max(1, round(self.time_masks * num_frames / 1000)) if self.time_masks else 0):
            width = rng.integers(0, min(self.time_width, num_frames // 5) + 1)
            begin = rng.integers(0, num_frames - width + 1)
            masked[begin : begin + width] = fill
        # A new model maps fully masked features to zeros, where the gradient of layer norms is infinite.
        widest = min(self.frequency_width, (num_features - 1) // max(self.frequency_masks, 1))
        for _ in range(self.frequency_masks):
            width = rng.integers(0, widest + 1)
            begin = rng.integers(0, num_features - width + 1)
            masked[:, begin : begin + width] = fill[begin : begin + width]
        return masked


MISSING = ("nan", "<na>")  # missing values of pandas, in lower case like all transcripts
SHORTEST = 200  # frames of the shortest bucket, two seconds


class SpeechBuckets(LengthBuckets):
    """Recordings of a store in buckets of similar length.

    Recordings are left out if they are too long or have unknown labels, no transcript, or too few frames. CTC needs
    one frame per label and one per blank between equal labels. Character transcripts "nan" and "<NA>", the missing
    values of pandas, count as no transcript. The log reports how many recordings are left out.

    Args:
        store: `SpeechStore`.
        batch_size: recordings per batch in the longest bucket.
        max_length: frames of the longest bucket.
        subsampling: subsampling factor of the model. Default 1.

    Attributes:
        numbers: int (num_usable,), numbers in the store of the usable recordings, including those that are too long.
        left_out: number of recordings left out by reason: "unknown_labels", "empty", "missing_transcript",
            "more_labels_than_frames", "too_long".
        lengths, num_batches: see `LengthBuckets`.

    Raises:
        ValueError: If a size is not positive or no recording is left.

    Example:

    >>> store = open_speech_store(open_speech(path="speech.npz", data_dir="/tmp/data"), "test")
    >>> buckets = SpeechBuckets(store, batch_size=1, max_length=4608, subsampling=4)
    >>> inputs, targets, weights = buckets.training_batches(seed=0, masks=FeatureMasks(time_masks=3))[300]
    """

    def __init__(self, store: SpeechStore, batch_size: int, max_length: int, subsampling: int = 1) -> None:
        check_count("subsampling", subsampling)
        self.store, self.subsampling = store, subsampling
        min_frames = np.array([_min_frames(store.label_ids(number)) for number in range(store.num_utterances)], "int64")
        reasons = {
            "unknown_labels": store.has_unknown,
            "empty": (store.num_labels == 0) & ~store.has_unknown,
            "missing_transcript": _is_missing(store) & ~store.has_unknown,
            "more_labels_than_frames": (min_frames > -(-store.num_frames // subsampling)) & ~store.has_unknown,
        }
        usable = ~np.any(list(reasons.values()), axis=0)
        self.left_out = {name: int(np.sum(applies)) for name, applies in reasons.items()}
        for name, count in self.left_out.items():
            if count:
                reason = name.replace("_", " ")
                logging.warning("%d of %d recordings are left out: %s.", count, store.num_utterances, reason)
        if not usable.any():
            raise ValueError(f"`store` must have usable recordings. Received: left_out={self.left_out}.")
        self.numbers = np.flatnonzero(usable)
        super().__init__(store.num_frames[usable], batch_size, max_length, SHORTEST, ("recording", "frame"))
        self.left_out["too_long"] = int(np.sum(self.is_too_long))

    @functools.cached_property
    def _label_widths(self):
        """Maximum number of labels of the recordings of each bucket, by length."""
        widths = dict.fromkeys(self.lengths, 1)
        for rows in self.plans():
            counts = self.store.num_labels[self.numbers[rows.items[rows.items >= 0]]]
            widths[rows.length] = max(widths[rows.length], *counts.tolist())
        return widths

    def read(
        self, rows: Rows, masks: FeatureMasks | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Read the batch of the given rows.

        Args:
            rows: the recordings.
            masks: feature bands to mask. Default: None, no masks.

        Returns:
            `(inputs, labels, weights)`: inputs {"features": float32 (B, T, F), "padding_mask": bool (B, T)}; labels
            int32 (B, U), 0 for padding; weights float32 (B,), 0 for an empty row. T and U depend on the bucket.
        """
        shape = len(rows.items), rows.length
        features, mask = np.zeros((*shape, self.store.num_features), np.float32), np.zeros(shape, bool)
        labels = np.zeros((len(rows.items), self._label_widths[rows.length]), np.int32)
        for row, item in enumerate(rows.items):
            if item < 0:
                continue
            number = self.numbers[item]
            frames, ids = self.store.features(number), self.store.label_ids(number)
            if masks is not None:
                frames = masks.apply(frames, self.store.mean, rows.step, rows.first + row)
            features[row, : len(frames)], mask[row, : len(frames)], labels[row, : len(ids)] = frames, True, ids
        return {"features": features, "padding_mask": mask}, labels, (rows.items >= 0).astype("float32")


def _is_missing(store):
    """Return whether each transcript is a missing value, bool (num_utterances,)."""
    is_missing = np.isin(store.num_labels, [len(text) for text in MISSING]) & (store.unit == CHARACTER)
    for number in np.flatnonzero(is_missing):
        is_missing[number] = store.transcript(store.label_ids(number)) in MISSING
    return is_missing


def _min_frames(ids):
    """Return the minimum number of frames for labels (U,): one per label, and a blank between equal labels."""
    return len(ids) + int(np.sum(ids[1:] == ids[:-1]))
