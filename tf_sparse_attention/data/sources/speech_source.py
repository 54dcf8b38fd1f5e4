"""Data sets of speech: recordings with transcripts."""

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import data_folder, local_path
from tf_sparse_attention.data.sources.array_file import ArraySpec, checked_offsets, read_arrays
from tf_sparse_attention.data.sources.file_splits import file_fingerprint
from tf_sparse_attention.data.sources.log_mel import LogMel
from tf_sparse_attention.data.sources.media_files import Recording, as_recording, decode_wav, open_media_files
from tf_sparse_attention.data.sources.media_sources import MediaSource
from tf_sparse_attention.data.sources.readers import ListReader, Reader
from tf_sparse_attention.data.sources.tfds_reader import find_audio, find_text_feature, open_tfds

PHONE, CHARACTER = "phone", "character"
FORMS = {
    "features": ArraySpec("numbers", "TF"),
    "offsets": ArraySpec("integers", "N"),
    "phonemes": ArraySpec("integers", "U"),
    "phoneme_offsets": ArraySpec("integers", "N"),
    "vocabulary": ArraySpec("strings", "V"),
    "split": ArraySpec("strings", "N"),
    "scale": ArraySpec("numbers", "2", is_needed=False),
}
RECORDING_FORMS = {
    "features": FORMS["features"],
    "offsets": ArraySpec("integers", "N", is_needed=False),
    "scale": FORMS["scale"],
}


class Utterance(NamedTuple):
    """A recording with its transcript.

    Attributes:
        name: name for messages.
        features: float32 (T, F).
        transcript: the labels in order, such as phonemes or characters; empty if there is no transcript.
    """

    name: str
    features: np.ndarray
    transcript: list[str]


class SpeechSource(MediaSource):
    """Recordings of a data set of speech with transcripts. Made by `open_speech`.

    Attributes:
        name: name for logs and folders.
        fingerprint: string that identifies the content.
        data_dir: folder for prepared features.
        num_features: F, features per frame.
        unit: unit of the labels, "phone" or "character".
        description: plain data that describes how features are computed from audio.
        labels: all labels. None: the labels that occur in the transcripts.
    """

    item = "recording"

    def __init__(
        self,
        reader: Reader,
        decode: Callable[[dict[str, Any]], tuple[np.ndarray, list[str]]],
        data_dir: str,
        num_features: int,
        unit: str,
        description: dict[str, Any],
        labels: Sequence[str] | None = None,
    ) -> None:
        super().__init__(reader, decode, data_dir)
        self.num_features, self.unit, self.description = num_features, unit, description
        self.labels = None if labels is None else tuple(labels)

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Iterate over the recordings of a split, always in the same order.

        Args:
            split: name of a split, or of a part in TFDS syntax ("train[:1%]").

        Raises:
            ValueError: If the split does not exist, or a recording cannot be read.
        """
        return (Utterance(name, *decoded) for name, decoded in self._decoded(split))


def open_speech(
    path: str | os.PathLike | None = None,
    tfds: str | None = None,
    data_dir: str | os.PathLike | None = None,
    local_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
    **log_mel: Any,
) -> SpeechSource:
    """Open a data set of speech.

    A file NAME.npz has the arrays

    - "features", float (all frames, F), or uint8 x with "scale" = (lo, hi) for the value lo + (hi - lo) x / 255,
    - "offsets", integers (N + 1,): recording i has the frames offsets[i] to offsets[i + 1],
    - "phonemes", integers (all labels,), indices into "vocabulary", strings (V,),
    - "phoneme_offsets", integers (N + 1,), and
    - "split", strings (N,), the split of each recording.

    A folder has files NAME.wav with transcripts NAME.txt, UTF-8. Subfolders named train, validation and test are the
    splits. Otherwise files are split by the hash of their content (about 90/5/5). The WAV files have one channel, 16
    bits and the sample rate of `LogMel`; nothing is resampled. Audio of TFDS has 16-bit integers. Transcripts are
    converted to lower case with single spaces, and their characters are the labels.

    Args:
        path: a file NAME.npz of features and labels, or a folder of WAV files.
        tfds: instead of `path`, a TFDS data set with a recording and a text in each example, such as "librispeech".
        data_dir: folder of TFDS and of prepared features. None: the default of TFDS.
        local_dir, try_gcs: for `tfds`, see `open_source`.
        **log_mel: arguments of `LogMel`; not for a file of features.

    Raises:
        ValueError: If none or both of `path` and `tfds` are given, the path or data set does not exist, a file is
            damaged or inconsistent, a transcript is missing, or `LogMel` has another sample rate.

    Example:

    >>> source = open_speech(path="speech.npz", data_dir="/tmp/data")
    >>> for utterance in source.utterances("test"):
    ...     print(utterance.features.shape, " ".join(utterance.transcript))
    """
    checks.check_one_given(path=path, tfds=tfds)
    if tfds is not None:
        return _open_tfds(tfds, LogMel(**log_mel), data_dir=data_dir, local_dir=local_dir, try_gcs=try_gcs)
    file = pathlib.Path(local_path(path)).expanduser()
    if file.is_dir():
        return _open_wav_files(file.resolve(), LogMel(**log_mel), data_folder(data_dir))
    if file.suffix != ".npz" or not file.is_file():
        raise ValueError(f"`path` must be a file NAME.npz, or a folder of WAV files. Received: path={path}.")
    if log_mel:
        raise ValueError(f"`log_mel` must be empty for a file of features. Received: {', '.join(sorted(log_mel))}.")
    return _open_features(file, data_folder(data_dir))


def _open_wav_files(path, log_mel, data_dir):
    reader = open_media_files(path, (".wav",), "WAV files", has_transcripts=True)

    def decode(example):
        features = _compute_features(decode_wav(example["content"]), path / example["name"], log_mel)
        return features, _characters(example["text"])

    return SpeechSource(reader, decode, data_dir, log_mel.num_bands, CHARACTER, log_mel.get_config())


def _open_tfds(name, log_mel, **options):
    reader = open_tfds(name, [find_audio, find_text_feature], **options)
    audio, text = reader.fields
    feature = reader.features[audio]
    rate = int(feature.sample_rate or log_mel.sample_rate)
    # Checks a recording of one sample: data sets take hours to prepare.
    shape = [1 if size is None else size for size in feature.shape]
    _compute_features(as_recording(np.zeros(shape, feature.np_dtype), rate), reader.name, log_mel)

    def decode(example):
        features = _compute_features(as_recording(example[audio], rate), example["name"], log_mel)
        return features, _characters(example[text].decode("utf-8", errors="replace"))

    return SpeechSource(reader, decode, reader.data_dir, log_mel.num_bands, CHARACTER, log_mel.get_config())


def _compute_features(recording: Recording | str, name: str | os.PathLike, log_mel: LogMel) -> np.ndarray:
    """Return the features of a recording, float32 (T, F), or raise a `ValueError` if `log_mel` cannot compute them."""
    if isinstance(recording, str):
        raise ValueError(f"`path` or `tfds` must hold recordings of 16 bits. Received: {name}, {recording}.")
    samples, rate = recording
    if rate != log_mel.sample_rate:
        raise ValueError(
            f"`sample_rate` must be {rate}, the rate of {name}, which is not resampled. "
            f"Received: sample_rate={log_mel.sample_rate}."
        )
    if samples.ndim != 1 or not len(samples):
        raise ValueError(
            "`path` or `tfds` must hold recordings of one channel, with samples. "
            f"Received: {name} of shape {samples.shape}."
        )
    return np.asarray(log_mel(samples.astype("float32") / 32768))


def read_recordings(path: str, description: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield pairs of the name and the features (T, F) of the recordings of a file for `prompt`.

    Args:
        path: a file NAME.wav, or NAME.npz with the array "features" (T, F). Optional arrays: "offsets", the start of
            each recording and the end of the last recording, and "scale", see `open_speech`.
        description: settings of the features, see `SpeechSource`.
    """
    file = pathlib.Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"`prompt` must be an existing file NAME.wav or NAME.npz, or a split. Received: {path}.")
    if file.suffix.lower() == ".wav":
        if "sample_rate" not in description:
            raise ValueError(f"`prompt` must be a file with features, like the training data. Received: {path}.")
        yield file.name, _compute_features(decode_wav(file.read_bytes()), file, LogMel(**description))
        return
    arrays = read_arrays(file, RECORDING_FORMS, "prompt")
    arrays.setdefault("offsets", np.array([0, len(arrays["features"])]))
    offsets = checked_offsets(arrays, "offsets", "features", file, "prompt")
    for number in range(len(offsets) - 1):
        yield f"{file.name}[{number}]", _frames(arrays, offsets, number)


def _frames(arrays, offsets, number):
    """Return the features of a recording, float32 (T, F)."""
    frames = arrays["features"][offsets[number] : offsets[number + 1]].astype("float32")
    if "scale" not in arrays:
        return frames
    low, high = arrays["scale"].astype("float32")
    return low + (high - low) * frames / 255


def _characters(text):
    """Return the labels of a transcript: characters in lower case, with single spaces between words."""
    return list(" ".join(text.lower().split()))


def _open_features(path, data_dir):
    arrays = read_arrays(path, FORMS)
    vocabulary = [str(label) for label in arrays["vocabulary"]]
    count = len(arrays["split"])
    offsets = checked_offsets(arrays, "offsets", "features", path, num_parts=count)
    label_offsets = checked_offsets(arrays, "phoneme_offsets", "phonemes", path, num_parts=count)
    ids = arrays["phonemes"]
    repeated = sorted({label for label in vocabulary if vocabulary.count(label) > 1})
    if repeated:
        raise ValueError(f"`vocabulary` must have each label once. Received: {repeated[0]!r} twice in {path}.")
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(vocabulary):
        raise ValueError(
            f"`phonemes` must be indices into `vocabulary`, from 0 to {len(vocabulary) - 1}. Received: "
            f"{ids.min()} to {ids.max()} in {path}."
        )

    def read(number):
        labels = ids[label_offsets[number] : label_offsets[number + 1]]
        return {
            "name": f"{path.stem}[{number}]",
            "features": _frames(arrays, offsets, number),
            "labels": [vocabulary[i] for i in labels],
        }

    items = {split: np.flatnonzero(arrays["split"] == split) for split in dict.fromkeys(arrays["split"].tolist())}
    reader = ListReader(path.stem, f"{path.stem}#{file_fingerprint(path)}", items, read)
    return SpeechSource(
        reader,
        lambda example: (example["features"], example["labels"]),
        data_dir,
        num_features=arrays["features"].shape[1],
        unit=PHONE,
        description={"features": "of the file"},
        labels=vocabulary,
    )
