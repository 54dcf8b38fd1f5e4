"""Reads folders of images and recordings and WAV files, and defines the base class of their sources."""

import io
import pathlib
import wave
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf_sparse_attention.data.sources.file_splits import (
    SPLITS,
    DataFile,
    fingerprint_files,
    list_files,
    nonempty_splits,
    readable_name,
    scan_file,
)
from tf_sparse_attention.data.sources.readers import ListReader


def open_media_files(
    path: pathlib.Path, suffixes: Sequence[str], items: str, has_transcripts: bool = False
) -> ListReader:
    """Open the files with given suffixes (lower case) in a folder and its subfolders.

    An example is {"name": name of the file, "content": bytes}, and "text", the content of NAME.txt, if files have
    transcripts. Splits are as in `list_files`, or else as in `nonempty_splits`. Examples are sorted by name.
    """

    def find(folder: pathlib.Path) -> list[pathlib.Path]:
        items = [file for file in folder.rglob("*") if file.suffix.lower() in suffixes]
        return items + [file.with_suffix(".txt") for file in items if has_transcripts]

    kinds = ", ".join(suffixes)
    listed = list_files(path, find, "**/*", f"{kinds} with a transcript" if has_transcripts else kinds)
    files: dict[str, list[DataFile]] = {}
    for split, paths in listed.items():
        media = [file for file in paths if file.suffix.lower() in suffixes]
        files[split] = [DataFile(file.relative_to(path).as_posix(), file, scan_file(file).digest) for file in media]
    if not any(files.values()):
        raise ValueError(f"`path` must hold files {kinds}. Received: path={path}, without any.")
    if "" in files:
        different = len({file.digest for file in files[""]})
        if different < len(SPLITS):
            raise ValueError(
                f"`path` must hold 3 or more different {items}, or folders named {', '.join(SPLITS)}. "
                f"Received: path={path} with {different}."
            )
        files = nonempty_splits(files[""])
    transcripts = [_transcript(file) for split in files.values() for file in split if has_transcripts]
    digests = [scan_file(transcript).digest for transcript in transcripts]
    name = readable_name(path, "media")

    def read(file: DataFile) -> dict[str, str | bytes]:
        example: dict[str, str | bytes] = {"name": file.name, "content": file.read()}
        return {**example, "text": _read_transcript(file)} if has_transcripts else example

    return ListReader(name, f"media_folder/{name}_{fingerprint_files(files, digests)}", files, read)


def _transcript(file):
    path = file.path.with_suffix(".txt")
    if not path.is_file():
        raise ValueError(
            f"`path` must hold a transcript NAME.txt next to each NAME.wav. Received: {file.path} without one."
        )
    return path


def _read_transcript(file):
    path = _transcript(file)
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`path` must hold transcripts in UTF-8. Received: {path}, invalid at byte {error.start}."
        ) from error


class Recording(NamedTuple):
    """Recording of int16 samples, (T,) or (T, channels), with its sample rate."""

    samples: np.ndarray
    sample_rate: int


def decode_wav(content: bytes) -> Recording | str:
    """Decode a WAV file of 16-bit PCM, or return the reason for a failure."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, length = file.getsampwidth(), file.getnchannels(), file.getnframes()
            rate, data = file.getframerate(), file.readframes(length)
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError: a chunk is longer than the file
        return f"which cannot be read: {str(error) or 'it is incomplete'}"
    if width != 2:
        return f"which has {8 * width} bits per sample, not 16"
    if len(data) != length * channels * width:
        return f"which cannot be read: it has {len(data) // (channels * width)} of {length} samples"
    samples = np.frombuffer(data, "<i2").astype(np.int16)
    return Recording(samples.reshape(-1, channels) if channels > 1 else samples, rate)


def mix_down(samples: np.ndarray) -> np.ndarray:
    """Average the channels of int16 (T,) or (T, channels), rounded to int16 (T,)."""
    if samples.ndim == 1:
        return samples
    return np.round(samples.mean(axis=-1)).astype(np.int16)


def as_recording(samples: np.ndarray, sample_rate: int) -> Recording | str:
    """Return samples of TFDS, (T,) or (T, channels), as a recording, or the reason why they are not 16-bit integers."""
    limits = np.iinfo(np.int16)
    if not np.issubdtype(samples.dtype, np.integer):
        return f"of {samples.dtype} instead of 16-bit integers"
    if samples.size and (samples.min() < limits.min or samples.max() > limits.max):
        return f"from {samples.min()} to {samples.max()}, beyond 16 bits"
    return Recording(samples.astype(np.int16), sample_rate)


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode samples, int16 (T,), as a WAV file of 16-bit PCM."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()
