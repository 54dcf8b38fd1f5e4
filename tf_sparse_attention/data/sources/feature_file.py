"""A file of features and labels of speech."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import data_folder
from tf_sparse_attention.data.sources.array_file import Form, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.speech_source import PHONE, Utterance

FORMS = {
    "features": Form("numbers", "TF"),
    "offsets": Form("integers", "N"),
    "phonemes": Form("integers", "U"),
    "phoneme_offsets": Form("integers", "N"),
    "vocabulary": Form("strings", "V"),
    "split": Form("strings", "N"),
    "scale": Form("numbers", "2", is_needed=False),
}


class FeatureFile:
    """The recordings of a file NAME.npz, a `SpeechSource` whose labels are phonemes.

    Arrays: "features" (all frames, F), float, or uint8 x with "scale" = (lo, hi) for the value lo + (hi - lo) x / 255;
    "offsets" (recordings + 1,), integers, of which frames offsets[i] to offsets[i + 1] are recording i; "phonemes" (all
    labels,), integers, indices into "vocabulary" (V,), strings; "phoneme_offsets" likewise; "split" (recordings,),
    strings, the names of splits.

    Args:
        path: the file.
        data_dir: folder in which prepared features are kept. None is TFDS's own default.

    Raises:
        ValueError: for a file that is damaged, lacks an array or has one of another kind, whose offsets do not fit, or
            whose vocabulary has a label twice.
    """

    unit = PHONE

    def __init__(self, path: str | os.PathLike, data_dir: str | os.PathLike | None = None) -> None:
        self._path = pathlib.Path(path)
        self._arrays = _read(self._path)
        self.name = self._path.stem
        self.fingerprint = f"{self.name}#{content_digest(self._path.read_bytes())[:16]}"
        self.data_dir = data_folder(data_dir)
        self.num_features = self._arrays["features"].shape[1]
        self.labels: tuple[str, ...] | None = tuple(str(label) for label in self._arrays["vocabulary"])
        self.description: dict[str, Any] = {"features": "of the file"}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(dict.fromkeys(str(split) for split in self._arrays["split"]))

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Iterates over the recordings of a split."""
        if split not in self.splits:
            raise ValueError(
                f"`split` must be one of {', '.join(self.splits)} in {self.name}. Received: split={split}."
            )
        arrays = self._arrays
        for number in np.flatnonzero(arrays["split"] == split):
            frames = arrays["features"][arrays["offsets"][number] : arrays["offsets"][number + 1]].astype("float32")
            if "scale" in arrays:
                low, high = arrays["scale"].astype("float32")
                frames = low + (high - low) * frames / 255
            ids = arrays["phonemes"][arrays["phoneme_offsets"][number] : arrays["phoneme_offsets"][number + 1]]
            yield Utterance(f"{self.name}[{number}]", frames, [str(arrays["vocabulary"][i]) for i in ids])


def _read(path):
    """Returns the arrays of a file, checked."""
    arrays = read_arrays(path, FORMS)
    _check_labels(arrays, path)
    for offsets, values in (("offsets", "features"), ("phoneme_offsets", "phonemes")):
        arrays[offsets] = checked_offsets(arrays, offsets, values, path, num_parts=len(arrays["split"]))
    if len(arrays["phonemes"]) and not 0 <= arrays["phonemes"].min() <= arrays["phonemes"].max() < len(
        arrays["vocabulary"]
    ):
        raise ValueError(
            f"`phonemes` must be indices into `vocabulary`, from 0 to {len(arrays['vocabulary']) - 1}. Received: "
            f"{arrays['phonemes'].min()} to {arrays['phonemes'].max()} in {path}."
        )
    return arrays


def _check_labels(arrays, path):
    labels = [str(label) for label in arrays["vocabulary"]]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"`vocabulary` must have each label once. Received: {twice[0]!r} twice in {path}.")
