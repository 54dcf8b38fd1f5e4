"""Data sets of audio from TFDS, folders of WAV files, or files of arrays."""

import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.codecs import NUM_SPECIAL, AudioCodec
from tf_sparse_attention.data.local_paths import data_folder, local_path
from tf_sparse_attention.data.sources.array_file import ArraySpec, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.file_splits import content_digest, existing_path, file_fingerprint
from tf_sparse_attention.data.sources.media_files import MediaSource, Recording, decode_wav, mix_down, open_media_files
from tf_sparse_attention.data.sources.readers import ListReader, Reader
from tf_sparse_attention.data.sources.tfds_reader import find_media_feature, open_tfds

SUFFIXES = (".wav",)
FORMS = {
    "audio": ArraySpec("int16", "S"),
    "offsets": ArraySpec("integers", "N"),
    "sample_rate": ArraySpec("integers"),
    "is_test": ArraySpec("bool", "N", is_needed=False),
}


class AudioSource(MediaSource):
    """Recordings of a data set, all with the same sample rate.

    Made by `open_audio`. `open_token_store(source, codec, split)` writes the recordings to disk once, as 2-byte ids,
    for `training_batches` and `evaluation_batches`. Each recording is a document.

    Attributes:
        name: name of the data set.
        fingerprint: string that identifies the content.
        data_dir: folder for prepared data.
    """

    item = "recording"

    def __init__(
        self,
        reader: Reader,
        decode: Callable[[dict[str, Any]], Recording | str],
        data_dir: str,
        sample_rate: int | None = None,
    ) -> None:
        checks.check_optional_count("sample_rate", sample_rate)
        super().__init__(reader, decode, data_dir)
        self._sample_rate = sample_rate

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        if self._sample_rate is None:
            self._sample_rate = self._first().sample_rate
        return self._sample_rate

    def recordings(self, split: str) -> Iterator[np.ndarray]:
        """Iterate over the recordings of a split, int16 (T,), always in the same order. Channels are averaged.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

        Raises:
            ValueError: If the split does not exist. After the last recording: if recordings have another sample rate
                or no samples, or cannot be read. The message has the number of invalid recordings and the first name.
        """
        rate = self.sample_rate

        def find_fault(recording: Recording) -> str | None:
            if recording.sample_rate != rate:
                return f"of {recording.sample_rate} samples per second"
            return None if len(recording.samples) else "without samples"

        recordings = self._valid(split, find_fault, f"recordings of {rate} samples per second")
        return (mix_down(recording.samples) for recording in recordings)

    def documents(self, split: str) -> Iterator[bytes]:
        """Iterate over the recordings as bytes of an `AudioCodec`, one per sample; see `recordings`."""
        codec = AudioCodec(self.sample_rate)
        for samples in self.recordings(split):
            yield (codec.encode(samples) - NUM_SPECIAL).astype(np.uint8).tobytes()


def open_audio(
    tfds: str | None = None,
    path: str | os.PathLike | None = None,
    sample_rate: int | None = None,
    local_dir: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
) -> AudioSource:
    """Open a data set of audio. TFDS data sets are downloaded and prepared on first use.

    A file NAME.npz has the arrays `audio`, int16 (S,); `offsets`, integers (N + 1,): recording n is
    `audio[offsets[n]:offsets[n + 1]]`; `sample_rate`, an integer; and optionally `is_test`, bool (N,): the split test.
    All other recordings are the split train. Recordings are in the order of their content hashes, so each part of a
    split is a representative sample.

    Args:
        tfds: name of a TFDS data set with a feature `tfds.features.Audio`, such as "groove/full-16000hz".
        path: instead of `tfds`, a folder of WAV files of 16-bit PCM, or a file NAME.npz. Subfolders named train,
            validation and test are the splits. Otherwise files are split by the hash of their content (about 90/5/5).
        sample_rate: samples per second that all recordings must have. None: the rate of the data set, or of the first
            recording. Recordings are not resampled.
        local_dir, data_dir, try_gcs: see `open_source`.

    Raises:
        ValueError: If none or both of `tfds` and `path` are given, there are no recordings, or `sample_rate` is neither
            given nor known.
        ImportError: If tensorflow-datasets is needed and not installed.

    Example:

    >>> source = open_audio(path="recordings", data_dir="/tmp/data")
    >>> store = open_token_store(source, AudioCodec(source.sample_rate), "train")
    """
    checks.check_one_given(tfds=tfds, path=path)
    folder = data_folder(data_dir)
    if path is None:
        reader = open_tfds(
            tfds, lambda features: [find_media_feature(features, "Audio", "a recording")], data_dir, local_dir, try_gcs
        )
        (field,) = reader.fields
        known_rate = reader.features[field].sample_rate or sample_rate
        if known_rate is None:
            raise ValueError(
                f"`sample_rate` must be given for a data set without a sample rate. Received: None for {reader.name}."
            )
        rate = int(known_rate)
        sample_rate = rate if sample_rate is None else sample_rate
        return AudioSource(reader, lambda example: _as_recording(example[field], rate), folder, sample_rate)
    file = existing_path(local_path(path), "folder of WAV files, or a file NAME.npz")
    if file.is_dir():
        files = open_media_files(file, SUFFIXES, "WAV files")
        return AudioSource(files, lambda example: decode_wav(example["content"]), folder, sample_rate)
    arrays, rate = _open_arrays(file)
    sample_rate = rate if sample_rate is None else sample_rate
    return AudioSource(arrays, lambda example: Recording(example["audio"], rate), folder, sample_rate)


def _as_recording(samples, sample_rate):
    limits = np.iinfo(np.int16)
    if not np.issubdtype(samples.dtype, np.integer):
        return f"of {samples.dtype} instead of 16-bit integers"
    if samples.size and (samples.min() < limits.min or samples.max() > limits.max):
        return f"from {samples.min()} to {samples.max()}, beyond 16 bits"
    return Recording(samples.astype(np.int16), sample_rate)


def _open_arrays(path: pathlib.Path) -> tuple[ListReader, int]:
    """Return the reader of a file NAME.npz and its sample rate."""
    arrays = read_arrays(path, FORMS)
    offsets = checked_offsets(arrays, "offsets", "audio", path)
    count = len(offsets) - 1
    is_test = arrays.get("is_test", np.zeros(count, bool))
    if len(is_test) != count:
        raise ValueError(
            f"`path` must hold `is_test` as bool ({count},), one per recording. "
            f"Received: {path} with {is_test.dtype} of shape {is_test.shape}."
        )

    def read(number: int) -> dict[str, np.ndarray]:
        return {"audio": arrays["audio"][offsets[number] : offsets[number + 1]]}

    numbers = sorted(range(count), key=lambda number: content_digest(read(number)["audio"].tobytes()))
    items = {"train": [n for n in numbers if not is_test[n]], "test": [n for n in numbers if is_test[n]]}
    fingerprint = f"audio_arrays/{path.stem}_{file_fingerprint(path)}"
    return ListReader(path.stem, fingerprint, items, read), int(arrays["sample_rate"])
