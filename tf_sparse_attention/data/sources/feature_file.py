"""A file of features and labels of speech."""

import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import data_folder
from tf_sparse_attention.data.sources.speech_source import PHONE, Utterance
from tf_sparse_attention.data.sources.text_files import content_digest

NEEDED = ("features", "offsets", "phonemes", "phoneme_offsets", "vocabulary", "split")


class FeatureFile:
    """The recordings of a file NAME.npz, a `SpeechSource` whose labels are phonemes.

    Arrays: "features" (all frames, F), float, or uint8 x with "scale" = (lo, hi) for the value lo + (hi - lo) x / 255;
    "offsets" (recordings + 1,), of which frames offsets[i] to offsets[i + 1] are recording i; "phonemes" (all labels,),
    indices into "vocabulary", strings; "phoneme_offsets" likewise; "split" (recordings,), names of splits.

    Args:
        path: the file.
        data_dir: folder in which prepared features are kept. None is TFDS's own default.

    Raises:
        ValueError: for a file that lacks an array, whose offsets do not fit, or whose vocabulary has a label twice.
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
    try:
        with path.open("rb") as content, np.load(content) as file:
            arrays = {name: file[name] for name in (*NEEDED, "scale") if name in file}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"`path` must be a whole file NAME.npz. Received: {path}: {error}.") from error
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise ValueError(f"`path` must hold the arrays {', '.join(NEEDED)}. Received: {path}, without {missing[0]}.")
    _check_features(arrays, path)
    _check_integers(arrays["phonemes"], arrays["phoneme_offsets"], path)
    count = len(arrays["split"])
    for offsets, values in (("offsets", "features"), ("phoneme_offsets", "phonemes")):
        found = arrays[offsets] = arrays[offsets].astype("int64")  # unsigned ones would never fall
        if len(found) != count + 1 or found[0] != 0 or found[-1] != len(arrays[values]) or (np.diff(found) < 0).any():
            raise ValueError(
                f"`{offsets}` must be {count + 1} growing numbers from 0 to {len(arrays[values])}, the length of "
                f"`{values}`. Received: {len(found)} from {found[0]} to {found[-1]} in {path}."
            )
    if len(arrays["phonemes"]) and not 0 <= arrays["phonemes"].min() <= arrays["phonemes"].max() < len(
        arrays["vocabulary"]
    ):
        raise ValueError(
            f"`phonemes` must be indices into `vocabulary`, from 0 to {len(arrays['vocabulary']) - 1}. Received: "
            f"{arrays['phonemes'].min()} to {arrays['phonemes'].max()} in {path}."
        )
    return arrays


def _check_integers(ids, offsets, path):
    """Raises a `ValueError` for phonemes that are floats, as lists with missing values become."""
    if ids.dtype.kind in "iu":
        return
    wrong = np.flatnonzero(ids != ids)  # NaN alone
    where = f", NaN in recording {np.searchsorted(offsets, wrong[0], side='right') - 1}" if len(wrong) else ""
    raise ValueError(f"`phonemes` must be whole numbers. Received: {ids.dtype.name}{where} of {path}.")


def _check_features(arrays, path):
    features, labels = arrays["features"], [str(label) for label in arrays["vocabulary"]]
    if features.ndim != 2:
        raise ValueError(f"`path` must hold `features` of shape (frames, F). Received: {features.shape} in {path}.")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"`vocabulary` must have each label once. Received: {twice[0]!r} twice in {path}.")
