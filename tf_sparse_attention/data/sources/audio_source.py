"""Opens data sets of sound: by TFDS name, a folder of files, or arrays in a file."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.audio.codec import NUM_SPECIAL, AudioCodec
from tf_sparse_attention.data.local_paths import local_path
from tf_sparse_attention.data.optional import data_folder, import_tfds
from tf_sparse_attention.data.sources.media_files import without_odd
from tf_sparse_attention.data.sources.text_source import check_folder, find_builder
from tf_sparse_attention.data.sources.tfds_preparation import making_builder


class AudioSource:
    """The recordings of one data set, all of one sample rate.

    Made by `open_audio`. `open_token_store(source, codec, split)` writes them once on the disk, as ids of 2 bytes, for
    `TrainingBatches` and `evaluation_batches`: its documents are the recordings.

    Attributes:
        name: name of the data set.
        fingerprint: string that identifies its content.
        data_dir: folder in which token stores are kept, a string.

    Args:
        reader: what reads the data set: has `name`, `fingerprint`, `splits`, `sample_rate` or None where only
            recordings tell it, and `read(split)`, an iterator over pairs of a name and either a `Recording` or, as
            text, what is wrong.
        data_dir: a folder.
        sample_rate: samples a second that all have to have. None: that of the data set, or else of its first recording.
    """

    def __init__(self, reader: Any, data_dir: str, sample_rate: int | None = None) -> None:
        checks.check_optional_count("sample_rate", sample_rate)
        self._reader, self.data_dir = reader, data_dir
        self.name, self.fingerprint = reader.name, reader.fingerprint
        self._sample_rate = reader.sample_rate if sample_rate is None else sample_rate

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._reader.splits)

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        if self._sample_rate is None:
            name, recording = next(self._reader.read(self.splits[0]))
            if isinstance(recording, str):
                raise ValueError(f"`path` must hold recordings that can be read. Received: {name}, {recording}.")
            self._sample_rate = recording.sample_rate
        return self._sample_rate

    def recordings(self, split: str) -> Iterator[np.ndarray]:
        """Iterates over the recordings of a split, always in the same order.

        Args:
            split: name of a split, or a part of one in the syntax of TFDS ("train[:1%]").

        Returns:
            Iterator of int16 (T,), the rounded mean of several channels.

        Raises:
            ValueError: If there is no such split; at the end, if there was a recording of another sample rate, an empty
                one, or one that cannot be read, with the name of the first and their number.
        """
        rate = self.sample_rate

        def find_fault(recording):
            if recording.sample_rate != rate:
                return f"of {recording.sample_rate} samples a second"
            return None if len(recording.samples) else "without samples"

        expected = f"recordings of {rate} samples a second"
        for recording in without_odd(self._reader.read(split), find_fault, expected):
            yield mixed_down(recording.samples)

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterates over the recordings as bytes of `AudioCodec`, one a sample; see `recordings`."""
        codec = AudioCodec(self.sample_rate)
        for samples in self.recordings(split):
            yield (codec.encode(samples) - NUM_SPECIAL).astype(np.uint8).tobytes()


def mixed_down(samples: np.ndarray) -> np.ndarray:
    """Returns one channel, int16 (T,), the rounded mean of those of int16 (T,) or (T, channels)."""
    if samples.ndim == 1:
        return samples
    return np.round(samples.mean(axis=-1)).astype(np.int16)


def open_audio(
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    sample_rate: int | None = None,
    local_dir: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> AudioSource:
    """Opens a data set of sound. One of TFDS is downloaded and prepared when its recordings are first read.

    Args:
        tfds: name of a data set of TFDS with a feature `tfds.features.Audio`, such as "groove/full-16000hz".
        path: instead of `tfds`, a folder of WAV files of 16-bit PCM, see `FolderReader`, or a file NAME.npz of arrays,
            see `ArrayReader`.
        sample_rate: samples a second that all recordings have to have. None: that of the data set, or of the first
            recording. Recordings are not resampled.
        local_dir: the manual folder of TFDS, with files that the builder would download.
        data_dir: folder of TFDS, and of token stores; None is TFDS's own default.
        try_gcs: whether prepared data may be read from the public bucket of TFDS.

    Returns:
        `AudioSource`.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, or there are no recordings.
        ImportError: If tensorflow-datasets is not installed.

    Example:

    >>> source = open_audio(path="recordings", data_dir="/tmp/data")
    >>> store = open_token_store(source, AudioCodec(source.sample_rate), "train")
    """
    checks.check_one_given(tfds=tfds, path=path)
    library = import_tfds()
    folder = data_folder(data_dir)
    if path is not None:
        from tf_sparse_attention.data.audio.files import ArrayReader, FolderReader

        kind: Any = ArrayReader if str(path).endswith(".npz") else FolderReader
        return AudioSource(kind(local_path(path)), folder, sample_rate)
    from tf_sparse_attention.data.audio.tfds_reader import TfdsReader

    local = check_folder(local_dir)
    with making_builder(data_dir):
        builder = find_builder(library, str(tfds), data_dir=data_dir, try_gcs=try_gcs)
        return AudioSource(TfdsReader(builder, local, try_gcs, sample_rate), folder, sample_rate)
