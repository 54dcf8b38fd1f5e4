"""Features and labels of a split of speech on disk."""

import logging
import os
from collections.abc import Sequence

import numpy as np

from tf_sparse_attention.data.array_store import ArrayStore
from tf_sparse_attention.data.sources.speech_source import CHARACTER, PHONE, SpeechSource, Utterance

SEPARATORS = {PHONE: " ", CHARACTER: ""}  # text between two labels, by unit


class SpeechStore(ArrayStore):
    """Features and label ids of the recordings of a split. Made by `open_speech_store`, read by `SpeechBuckets`.

    Args:
        folder: folder of the store.

    Attributes:
        labels: all labels; label i has the id i + 1.
        unit: unit of the labels, "phone" or "character".
        num_utterances: number of recordings.
        num_features: F, features per frame.
        num_frames: int64 (num_utterances,), frames per recording.
        num_labels: int64 (num_utterances,), labels per recording; 0 for an empty transcript.
        mean, std: float32 (F,), statistics of the features over all frames.
        has_unknown: bool (num_utterances,), whether labels of a transcript are left out: they are not in `labels`.

    Raises:
        DamagedDataError: If the folder is damaged or incomplete.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        super().__init__(folder)
        self.labels, self.unit = tuple(self.metadata["labels"]), self.metadata["unit"]
        self._frame_offsets, self._label_offsets = self.arrays["frame_offsets"], self.arrays["label_offsets"]
        self.num_frames, self.num_labels = np.diff(self._frame_offsets), np.diff(self._label_offsets)
        self.num_utterances, self.num_features = len(self.num_frames), self.arrays["features"].shape[1]
        self.mean, self.std = (np.array(self.metadata[name], "float32") for name in ("mean", "std"))
        self.has_unknown = np.isin(np.arange(self.num_utterances), self.metadata["has_unknown"])

    def features(self, index: int) -> np.ndarray:
        """Return the features of a recording, float32 (T, F)."""
        return np.asarray(self.arrays["features"][self._frame_offsets[index] : self._frame_offsets[index + 1]])

    def label_ids(self, index: int) -> np.ndarray:
        """Return the 1-based label ids of a recording, int32 (U,)."""
        return np.asarray(self.arrays["labels"][self._label_offsets[index] : self._label_offsets[index + 1]])

    def transcript(self, ids: Sequence[int] | np.ndarray) -> str:
        """Convert label ids to text; see `join_labels`."""
        return join_labels(ids, self.labels, self.unit)


def join_labels(ids: Sequence[int] | np.ndarray, labels: Sequence[str], unit: str) -> str:
    """Convert 1-based label ids to text, with spaces between phones."""
    return SEPARATORS[unit].join(labels[int(label) - 1] for label in ids)


def open_speech_store(
    source: SpeechSource, split: str, labels: Sequence[str] | None = None, folder: str | os.PathLike | None = None
) -> SpeechStore:
    """Open the features and labels of a split, and write them first if they do not exist; see `ArrayStore.open`.

    Args:
        source: `SpeechSource`.
        split: name of the split.
        labels: all labels. Default: None, the labels of the source. If the source lists no labels: the labels of this
            split. Then open the training split first, and pass its `store.labels` for the other splits.
        folder: folder of all stores, local or remote. Default: None, "speech_stores" in the `data_dir` of the source.

    Raises:
        ValueError: If the split has no recordings, a recording has no frames, or the store is damaged.

    Example:

    >>> store = open_speech_store(open_speech(path="speech.npz", data_dir="/tmp/data"), "train")
    >>> store.features(0).shape, store.transcript(store.label_ids(0))
    """
    folder = os.path.join(source.data_dir, "speech_stores") if folder is None else folder
    labels = source.labels if labels is None else tuple(labels)
    identity = {
        "source": source.fingerprint,
        "features": source.description,
        "split": split,
        "labels": None if labels is None else list(labels),
    }
    return SpeechStore.open(
        folder, f"{source.name}_{split}", identity, lambda writer: _write(writer, source, split, labels)
    )


def _write(writer, source, split, labels):
    """Write the recordings of a split, one in memory at a time, and return the metadata."""
    is_open = labels is None  # whether new labels are added
    ids: dict[str, int] = {label: number for number, label in enumerate(labels or (), 1)}
    frame_ends, label_ends, label_ids, unknown = [0], [0], [], []
    sums = np.zeros((2, source.num_features))
    for number, utterance in enumerate(source.utterances(split)):
        features = _checked_features(utterance, source.num_features)
        writer.append("features", features)
        wide = features.astype("float64")
        sums += wide.sum(axis=0), (wide**2).sum(axis=0)
        if is_open:
            for label in utterance.transcript:
                ids.setdefault(label, len(ids) + 1)
        known = [ids[label] for label in utterance.transcript if label in ids]
        if len(known) < len(utterance.transcript):
            unknown.append(number)
        label_ids += known
        frame_ends.append(frame_ends[-1] + len(features))
        label_ends.append(len(label_ids))
    if not frame_ends[-1]:
        raise ValueError(f"`split` must have recordings. Received: split={split} of {source.name}.")
    names = sorted(ids) if is_open else list(ids)
    order = np.zeros(len(ids) + 1, "int32")  # sorted labels get ascending ids
    order[[ids[label] for label in names]] = np.arange(1, len(names) + 1)
    writer.append("labels", order[np.array(label_ids, "int64")])
    writer.append("frame_offsets", np.array(frame_ends, "int64"))
    writer.append("label_offsets", np.array(label_ends, "int64"))
    mean, squares = sums / frame_ends[-1]
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    logging.info("%s, %s: %d recordings, %d frames.", source.name, split, len(frame_ends) - 1, frame_ends[-1])
    statistics = {"mean": mean.tolist(), "std": np.where(std > 1e-4, std, 1.0).tolist()}  # 1: constant features
    return {"labels": names, "unit": source.unit, "has_unknown": unknown, **statistics}


def _checked_features(utterance: Utterance, num_features: int) -> np.ndarray:
    features = np.ascontiguousarray(utterance.features, "float32")
    if features.ndim != 2 or not len(features) or features.shape[1] != num_features:
        raise ValueError(
            f"`source` must have recordings with one or more frames of {num_features} features. "
            f"Received: {utterance.name} of shape {features.shape}."
        )
    if not np.isfinite(features).all():
        raise ValueError(f"`source` must have finite features. Received: NaN or infinity in {utterance.name}.")
    return features
