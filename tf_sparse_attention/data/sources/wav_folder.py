"""A folder of WAV files with transcripts."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import data_folder
from tf_sparse_attention.data.sources.file_splits import SPLITS, TextFile, assign_split, content_digest
from tf_sparse_attention.data.sources.left_out import warn_of_files, warn_of_missing_splits
from tf_sparse_attention.data.sources.log_mel import LogMel
from tf_sparse_attention.data.sources.media_files import split_files
from tf_sparse_attention.data.sources.speech_source import CHARACTER, Utterance, characters_of
from tf_sparse_attention.data.sources.wav_file import read_wav


class WavFolder:
    """The recordings of a folder, a `SpeechSource` of characters: each NAME.wav has its transcript in NAME.txt, UTF-8.

    The folder may have the subfolders train, validation and test. Otherwise a hash of each recording decides, about
    90/5/5 and at least one for each; equal recordings are never in two splits, and names have no effect. Recordings are
    mono, of 16 bits and of the sample rate of `LogMel`; nothing is resampled. Files NAME.txt without a recording are
    left out, with a warning that says how many.

    Args:
        path: the folder.
        data_dir: folder in which prepared features are kept. None is TFDS's own default.
        **log_mel: arguments of `LogMel`.

    Raises:
        ValueError: for a folder without WAV files, for one without its transcript, and for fewer than 3 different ones
            to split.
    """

    unit = CHARACTER
    labels: tuple[str, ...] | None = None

    def __init__(self, path: str | os.PathLike, data_dir: str | os.PathLike | None = None, **log_mel: Any) -> None:
        self._path = pathlib.Path(path)
        self._log_mel = LogMel(**log_mel)
        files = sorted(file for file in self._path.rglob("*") if file.suffix.lower() == ".wav")
        if not files:
            raise ValueError(f"`path` must hold files NAME.wav. Received: path={path}.")
        named = {split for split in SPLITS if (self._path / split).is_dir()}
        warn_of_missing_splits(self._path, named)
        listed = [_listed(file, self._path) for file in files]
        splits = _by_folder(listed, named) if named else split_files(listed, path, "WAV files")
        self._files = {split: found for split, found in splits.items() if found}
        _report_alone(self._path, files)
        self.name = self._path.resolve().name
        self.fingerprint = f"{self.name}#{_digest(self._files, is_named=bool(named))[:16]}"
        self.data_dir = data_folder(data_dir)
        self.num_features = self._log_mel.num_bands
        self.description: dict[str, Any] = self._log_mel.get_config()

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(split for split in SPLITS if split in self._files)

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Iterates over the recordings of a split, sorted by name."""
        if split not in self._files:
            raise ValueError(
                f"`split` must be one of {', '.join(self.splits)} in {self.name}. Received: split={split}."
            )
        for file in self._files[split]:
            text = _read_text(file.path.with_suffix(".txt"))
            features = np.asarray(self._log_mel(read_mono(file.path, self._log_mel.sample_rate)))
            yield Utterance(file.name, features, characters_of(text))


def read_mono(path: str | os.PathLike, sample_rate: int) -> np.ndarray:
    """Returns the samples of a WAV file, float32 (N,) in [-1, 1).

    Args:
        path: a file of 16 bits, mono.
        sample_rate: that it must have, in samples a second.

    Raises:
        ValueError: for a file of another kind, rate or number of channels, or without samples.
    """
    found = read_wav(pathlib.Path(path).read_bytes())
    if isinstance(found, str):
        raise ValueError(f"`path` must hold WAV files of 16 bits. Received: {path}, {found}.")
    samples, rate = found
    if rate != sample_rate:
        raise ValueError(
            f"`sample_rate` must be that of the WAV files, which are not resampled. Received: sample_rate={sample_rate}"
            f", {rate} samples a second in {path}."
        )
    if samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"`path` must hold WAV files of one channel, with samples. Received: {path} of the shape {samples.shape}."
        )
    return samples.astype("float32") / 32768


def _listed(file, folder):
    """Returns the `TextFile` of a recording that has a transcript."""
    if not file.with_suffix(".txt").is_file():
        raise ValueError(f"`path` must hold a transcript NAME.txt beside each NAME.wav. Received: {file} without one.")
    return TextFile(str(file.relative_to(folder)), file, content_digest(file.read_bytes()))


def _by_folder(files, named):
    """Returns the files of each split, those of the folder with its name."""
    found: dict[str, list[TextFile]] = {split: [] for split in SPLITS}
    for file in files:
        first = pathlib.PurePath(file.name).parts[0]
        if first not in named:
            raise ValueError(f"`path` must hold WAV files in {', '.join(sorted(named))} alone. Received: {file.path}.")
        found[first].append(file)
    return found


def _digest(splits, is_named):
    """Returns a hash of recordings and transcripts, and of the split of a recording that its own hash would not say."""
    lines = []
    for split, files in splits.items():
        for file in files:
            text = content_digest(file.path.with_suffix(".txt").read_bytes())
            moved = "" if is_named or split == assign_split(file.digest) else f" {split}"
            lines.append((file.path, f"{file.name} {file.digest} {text}{moved}"))
    return content_digest("\n".join(line for _, line in sorted(lines)).encode())


def _report_alone(folder, files):
    """Warns of transcripts that have no recording."""
    known = {file.with_suffix("") for file in files}
    alone = [file for file in folder.rglob("*.txt") if file.with_suffix("") not in known]
    warn_of_files(folder, alone, "transcripts without a recording")


def _read_text(path):
    """Returns the text in a file, without the mark of UTF-8 that some editors write first."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"`path` must hold transcripts in UTF-8. Received: {path}, wrong at {error.start}.") from error
