"""Features and labels of a whole split of speech on disk, mapped into memory."""

import hashlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_sparse_attention.atomic_files import atomic_folder, remove_stale
from tf_sparse_attention.data import checksums
from tf_sparse_attention.data.batches.remote_stores import open_copy
from tf_sparse_attention.data.sources.speech_source import SpeechSource, Utterance
from tf_sparse_attention.remote_files import is_remote

# Raised when the files change meaning, so that older stores are built again.
FORMAT = 1
METADATA, FRAMES, FRAME_OFFSETS = "metadata.json", "features.bin", "frames.bin"
LABELS, LABEL_OFFSETS = "labels.bin", "label_offsets.bin"


class SpeechStore:
    """The recordings of a split: features and label ids, read without loading all of them.

    Made by `open_speech_store`, read by `SpeechBatches`.

    Args:
        folder: folder with a complete store.

    Attributes:
        metadata: dictionary: what it was made of, and the counts below.
        labels: the kinds of labels; label i has the id i + 1.
        unit: what a label is, "phone" or "character".
        num_utterances: number of recordings.
        num_features: F, of a frame.
        num_frames: int64 (num_utterances,).
        num_labels: int64 (num_utterances,); 0 where nothing is written.
        mean, std: float32 (F,), of the features over all frames.
        has_unknown: bool (num_utterances,), transcripts with labels that are not among `labels`, which they lack.

    Raises:
        ValueError: if the folder holds no complete store, or one whose files are not what was written. The first
            opening in a process reads all of them for that.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        folder = pathlib.Path(folder)
        try:
            self.metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
            if self.metadata["format"] != FORMAT:
                raise KeyError("format")
            self.labels, self.unit = tuple(self.metadata["labels"]), self.metadata["unit"]
            self.num_utterances, self.num_features = self.metadata["num_utterances"], self.metadata["num_features"]
            self._frame_offsets, self._label_offsets = (
                np.fromfile(folder / name, "int64") for name in (FRAME_OFFSETS, LABEL_OFFSETS)
            )
            self._labels = np.fromfile(folder / LABELS, "int32")
            offsets = 8 * (self.num_utterances + 1)
            shape = int(self._frame_offsets[-1]), self.num_features
            _check_size(folder / FRAME_OFFSETS, offsets)
            _check_size(folder / LABEL_OFFSETS, offsets)
            _check_size(folder / LABELS, 4 * int(self._label_offsets[-1]))
            _check_size(folder / FRAMES, 4 * shape[0] * shape[1])
            self._features = np.memmap(folder / FRAMES, "float32", "r", shape=shape)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"`folder` must hold a complete store. Received: folder={folder} ({error}).") from error
        checksums.check(folder / checksums.FILE, folder)
        self.num_frames, self.num_labels = np.diff(self._frame_offsets), np.diff(self._label_offsets)
        self.mean, self.std = (np.array(self.metadata[name], "float32") for name in ("mean", "std"))
        self.has_unknown = np.isin(np.arange(self.num_utterances), self.metadata["has_unknown"])

    def features(self, index: int) -> np.ndarray:
        """Returns the features of a recording, float32 (T, F)."""
        return np.asarray(self._features[self._frame_offsets[index] : self._frame_offsets[index + 1]])

    def label_ids(self, index: int) -> np.ndarray:
        """Returns the ids of the labels of a recording, int32 (U,), from 1 on."""
        return self._labels[self._label_offsets[index] : self._label_offsets[index + 1]]

    def transcript(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns labels as text: phones with spaces between, characters without."""
        return transcript_of(ids, self.labels, self.unit)


def _check_size(path, expected):
    """Raises a `ValueError` for a file that was cut short, as by a full disk: recordings would have other labels."""
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected}")


def transcript_of(ids: Sequence[int] | np.ndarray, labels: Sequence[str], unit: str) -> str:
    """Returns label ids, from 1 on, as text: phones with spaces between, characters without."""
    return separator_of(unit).join(labels[int(label) - 1] for label in ids)


def separator_of(unit: str) -> str:
    """Returns what is between two labels of a text: a space between phones, nothing between characters."""
    return " " if unit == "phone" else ""


def open_speech_store(
    source: SpeechSource, split: str, labels: Sequence[str] | None = None, folder: str | os.PathLike | None = None
) -> SpeechStore:
    """Opens the features and labels of a split, building them if they are not there yet.

    The name of a store comes from the source, its features, the split and the labels: with another of them another
    store is built. It is written beside and renamed, so that a killed process leaves nothing that would be read.

    Args:
        source: `SpeechSource`.
        split: name of the split.
        labels: the kinds of labels. None: those of the source, or where it has none all that occur in this split, so
            for the training split; others then take `store.labels` of it.
        folder: folder of all stores. None is "speech_stores" in the source's `data_dir`. At an address as for
            `open_token_store`.

    Returns:
        `SpeechStore`.

    Raises:
        ValueError: if the split has no recordings, or one of them no frames, or the store is not what was written.

    Example:

    >>> store = open_speech_store(open_speech(path="speech.npz", data_dir="/tmp/data"), "train")
    >>> store.features(0).shape, store.transcript(store.label_ids(0))
    """
    folder = os.path.join(source.data_dir, "speech_stores") if folder is None else folder
    labels = source.labels if labels is None else tuple(labels)
    identity = {
        "format": FORMAT,
        "source": source.fingerprint,
        "features": source.description,
        "split": split,
        "labels": None if labels is None else list(labels),
    }
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    name = f"{re.sub('[^A-Za-z0-9]+', '_', f'{source.name}_{split}')}_{digest}"
    if is_remote(folder):
        return open_copy(folder, name, lambda root: _open(source, identity, root / name))
    return _open(source, identity, pathlib.Path(folder).expanduser() / name)


def _open(source, identity, target):
    """Opens or builds a store on a local disk."""
    if target.exists():
        try:
            store = SpeechStore(target)
            checksums.check(target / checksums.FILE, target, identity)
            return store
        except checksums.DamagedDataError:
            raise
        except ValueError as error:
            logging.warning("%s It is prepared anew.", error)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent)
    with atomic_folder(target) as temporary:
        temporary.mkdir()
        _write(temporary, source, identity["split"], identity)
    return SpeechStore(target)


def _write(folder, source, split, identity):
    """Writes a complete store, holding one recording at a time."""
    found: dict[str, int] = {label: number for number, label in enumerate(identity["labels"] or (), 1)}
    writer = _Writer(found, source.num_features, may_grow=identity["labels"] is None)
    with open(folder / FRAMES, "wb") as file:
        for utterance in source.utterances(split):
            writer.add(utterance, file)
    if not writer.frames[-1]:
        raise ValueError(f"`split` must have recordings. Received: split={split} of {source.name}.")
    # Not by `tofile`, whose error says nothing of a full disk.
    (folder / FRAME_OFFSETS).write_bytes(np.array(writer.frames, "int64").tobytes())
    (folder / LABEL_OFFSETS).write_bytes(np.array(writer.ends, "int64").tobytes())
    names = sorted(found) if writer.may_grow else list(found)
    order = np.zeros(len(found) + 1, "int32")  # ids go by the alphabet, not by what is said first
    order[[found[label] for label in names]] = np.arange(1, len(names) + 1)
    (folder / LABELS).write_bytes(order[np.array(writer.ids, "int64")].tobytes())
    metadata = identity | {"labels": names, "unit": source.unit, "num_features": source.num_features}
    metadata |= {"num_utterances": len(writer.frames) - 1, "has_unknown": writer.unknown, **writer.statistics()}
    (folder / METADATA).write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    files = {name: folder / name for name in (FRAMES, FRAME_OFFSETS, LABELS, LABEL_OFFSETS, METADATA)}
    checksums.write_checksums(folder / checksums.FILE, files, identity)
    logging.info("%s, %s: %d recordings, %d frames.", source.name, split, len(writer.frames) - 1, writer.frames[-1])


class _Writer:
    """The counts of a store that is written."""

    def __init__(self, found: dict[str, int], num_features: int, may_grow: bool) -> None:
        self._found, self._num_features, self.may_grow = found, num_features, may_grow
        self.frames, self.ends = [0], [0]
        self.ids: list[int] = []
        self.unknown: list[int] = []
        self._sums = np.zeros((2, num_features))

    def add(self, utterance: Utterance, file: Any) -> None:
        """Writes the features of a recording, and keeps its labels."""
        features = np.ascontiguousarray(utterance.features, "float32")
        if features.ndim != 2 or not len(features) or features.shape[1] != self._num_features:
            raise ValueError(
                f"`source` must have recordings of one frame or more, of {self._num_features} features. "
                f"Received: {utterance.name} of shape {features.shape}."
            )
        if not np.isfinite(features).all():
            raise ValueError(f"`source` must have finite features. Received: others in {utterance.name}.")
        file.write(features.tobytes())
        wide = features.astype("float64")
        self._sums += wide.sum(axis=0), (wide**2).sum(axis=0)
        if self.may_grow:
            for label in utterance.transcript:
                self._found.setdefault(label, len(self._found) + 1)
        known = [self._found[label] for label in utterance.transcript if label in self._found]
        if len(known) < len(utterance.transcript):
            self.unknown.append(len(self.frames) - 1)
        self.ids += known
        self.frames.append(self.frames[-1] + len(features))
        self.ends.append(len(self.ids))

    def statistics(self) -> dict[str, list[float]]:
        """Returns mean and standard deviation of each feature; 1 for one that never changes."""
        mean, squares = self._sums / self.frames[-1]
        std = np.sqrt(np.maximum(squares - mean**2, 0))
        return {"mean": mean.tolist(), "std": np.where(std > 1e-4, std, 1.0).tolist()}
