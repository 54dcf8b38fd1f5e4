"""Opens data sets of speech: recordings with what is said in them."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from tf_sparse_attention import checks
from tf_sparse_attention.data.local_paths import local_path

PHONE, CHARACTER = "phone", "character"


class Utterance(NamedTuple):
    """A recording with its transcript.

    Attributes:
        name: for messages.
        features: float32 (T, F).
        transcript: the labels in order, such as phonemes or characters; empty where nothing is written.
    """

    name: str
    features: np.ndarray
    transcript: list[str]


class SpeechSource(Protocol):
    """A data set of speech, made by `open_speech`.

    Attributes:
        name: for logs and work folders.
        fingerprint: string that identifies content and features.
        data_dir: folder in which prepared features are kept.
        num_features: F, of a frame.
        unit: what a label is, "phone" or "character".
        labels: all kinds of labels, or None where the transcripts have to be read first.
        description: plain data that says how features are made of sound.
    """

    name: str
    fingerprint: str
    data_dir: str
    num_features: int
    unit: str
    labels: tuple[str, ...] | None
    description: dict[str, Any]

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Iterates over the recordings of a split, always in the same order.

        Raises:
            ValueError: if there is no such split, or a recording cannot be read.
        """


def open_speech(
    path: str | os.PathLike | None = None,
    tfds: str | None = None,
    data_dir: str | os.PathLike | None = None,
    local_dir: str | os.PathLike | None = None,
    try_gcs: bool = False,
    **log_mel: Any,
) -> SpeechSource:
    """Opens a data set of speech.

    Args:
        path: a file NAME.npz of features and labels, see `FeatureFile`; or a folder of WAV files, each NAME.wav with
            its transcript in NAME.txt, see `WavFolder`.
        tfds: instead, the name of a data set of TFDS with a sound and a text, such as "librispeech".
        data_dir: folder of TFDS, in which features are kept too. None is TFDS's own default.
        local_dir, try_gcs: as for `open_source`, with `tfds`.
        **log_mel: arguments of `LogMel`, for sound; not for a file of features.

    Returns:
        A `SpeechSource`. Transcripts in text are in lower case, runs of white space one space, and their labels are the
        characters.

    Raises:
        ValueError: if none or both of `path` and `tfds` are given, or there is no such file, folder or data set.

    Example:

    >>> source = open_speech(path="speech.npz", data_dir="/tmp/data")
    >>> for utterance in source.utterances("test"):
    ...     print(utterance.features.shape, " ".join(utterance.transcript))
    """
    checks.check_one_given(path=path, tfds=tfds)
    if tfds is not None:
        from tf_sparse_attention.data.sources.speech_tfds import SoundSet

        return SoundSet(tfds, data_dir=data_dir, local_dir=local_dir, try_gcs=try_gcs, **log_mel)
    place = pathlib.Path(local_path(path)).expanduser()
    if place.is_dir():
        from tf_sparse_attention.data.sources.wav_folder import WavFolder

        return WavFolder(place, data_dir=data_dir, **log_mel)
    if place.suffix != ".npz" or not place.is_file():
        raise ValueError(f"`path` must be a file NAME.npz, or a folder of WAV files. Received: path={path}.")
    if log_mel:
        raise ValueError(f"A file of features takes no settings of sound. Received: {', '.join(sorted(log_mel))}.")
    from tf_sparse_attention.data.sources.feature_file import FeatureFile

    return FeatureFile(place, data_dir=data_dir)


def characters_of(text: str) -> list[str]:
    """Returns the labels of a text: its characters in lower case, with single spaces between words."""
    return list(" ".join(text.lower().split()))
