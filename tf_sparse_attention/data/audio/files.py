"""Reads sound from the disk: folders of WAV files, and arrays in a file."""

import os
import pathlib
from collections.abc import Iterator

import numpy as np

from tf_sparse_attention.data.sources.array_file import Form, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.file_splits import content_digest
from tf_sparse_attention.data.sources.media_files import MediaFolder, select
from tf_sparse_attention.data.sources.wav_file import Recording, read_wav

SUFFIXES = (".wav",)
FORMS = {
    "audio": Form("int16", "S"),
    "offsets": Form("integers", "N"),
    "sample_rate": Form("integers"),
    "is_test": Form("bool", "N", is_needed=False),
}


class FolderReader:
    """The WAV files of a folder, with any folders in it; see `AudioSource` and `MediaFolder`.

    Args:
        path: the folder.

    Raises:
        ValueError: As `MediaFolder`.
    """

    sample_rate = None

    def __init__(self, path: str | os.PathLike) -> None:
        self._folder = MediaFolder(path, SUFFIXES, "WAV files")
        self.name, self.splits = self._folder.name, self._folder.splits
        self.fingerprint = f"audio_folder/{self.name}_{self._folder.fingerprint}"

    def read(self, split: str) -> Iterator[tuple[str, Recording | str]]:
        """Yields the recordings of a split with the names of their files."""
        for file in self._folder.files(split):
            yield file.name, read_wav(file.read())


class ArrayReader:
    """The recordings in a file NAME.npz, one after the other; see `AudioSource`.

    Its arrays are `audio`, int16 (S,), `offsets`, integers (N + 1,): recording n is `audio[offsets[n]:offsets[n + 1]]`,
    `sample_rate`, an integer, and if there is a part for testing `is_test`, bool (N,); the rest is the split train. The
    order is that of a hash of their contents, so that any part of a split has some of every kind of them.

    Args:
        path: the file.

    Raises:
        ValueError: If there is no such file, it is damaged, or an array is missing or of another kind.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self._path = pathlib.Path(path).expanduser().resolve()
        if not self._path.is_file():
            raise ValueError(
                f"`path` must be an existing folder of WAV files, or a file NAME.npz. Received: path={path}."
            )
        found = read_arrays(self._path, FORMS)
        self._audio, self._offsets = found["audio"], checked_offsets(found, "offsets", "audio", self._path)
        self.sample_rate = int(found["sample_rate"])
        self.name = self._path.stem
        self.fingerprint = f"audio_arrays/{self.name}_{content_digest(self._path.read_bytes())[:16]}"
        is_test = found.get("is_test", np.zeros(len(self._offsets) - 1, bool))
        if len(is_test) != len(self._offsets) - 1:
            raise ValueError(
                f"`path` must hold `is_test` as bool ({len(self._offsets) - 1},), of each recording. "
                f"Received: {self._path} with {is_test.dtype} of shape {is_test.shape}."
            )
        numbers = sorted(range(len(is_test)), key=lambda number: content_digest(self._samples(number).tobytes()))
        parts = {"train": [n for n in numbers if not is_test[n]], "test": [n for n in numbers if is_test[n]]}
        self._numbers = {split: own for split, own in parts.items() if own}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._numbers)

    def read(self, split: str) -> Iterator[tuple[str, Recording | str]]:
        """Yields the recordings of a split, with their numbers as names."""
        for number in select(split, self._numbers):
            yield f"recording {number} of {self._path.name}", Recording(self._samples(number), self.sample_rate)

    def _samples(self, number):
        return self._audio[self._offsets[number] : self._offsets[number + 1]]
