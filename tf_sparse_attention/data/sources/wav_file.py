"""Decodes and encodes WAV files of 16-bit PCM."""

import io
import os
import wave
from typing import NamedTuple

import numpy as np


class Recording(NamedTuple):
    """A recording: samples, int16 (T,) or (T, channels), and samples per second."""

    samples: np.ndarray
    sample_rate: int


def decode_wav(content: bytes) -> Recording | str:
    """Decode a WAV file of 16-bit PCM, or return the reason why it cannot be read."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, length = file.getsampwidth(), file.getnchannels(), file.getnframes()
            rate, found = file.getframerate(), file.readframes(length)
    except (wave.Error, EOFError, RuntimeError) as error:  # RuntimeError: a chunk is longer than the file
        return f"which cannot be read: {str(error) or 'it ends early'}"
    if width != 2:
        return f"which has {8 * width} bits per sample, not 16"
    if len(found) != length * channels * width:
        return f"which cannot be read: {len(found) // (channels * width)} of its {length} samples are there"
    samples = np.frombuffer(found, "<i2").astype(np.int16)
    return Recording(samples.reshape(-1, channels) if channels > 1 else samples, rate)


def mix_down(samples: np.ndarray) -> np.ndarray:
    """Return one channel, int16 (T,), the rounded mean of the channels of int16 (T,) or (T, channels)."""
    if samples.ndim == 1:
        return samples
    return np.round(samples.mean(axis=-1)).astype(np.int16)


def decode_mono(content: bytes, name: str | os.PathLike, sample_rate: int) -> np.ndarray:
    """Decode a WAV file of one channel and `sample_rate` to float32 (N,) in [-1, 1).

    Raises:
        ValueError: If the file cannot be read, has another rate, several channels or no samples; it has the `name`.
    """
    found = decode_wav(content)
    if isinstance(found, str):
        raise ValueError(f"`path` must hold WAV files of 16 bits. Received: {name}, {found}.")
    samples, rate = found
    if rate != sample_rate:
        raise ValueError(
            f"`sample_rate` must be that of the WAV files, which are not resampled. Received: sample_rate={sample_rate}"
            f", {rate} samples per second in {name}."
        )
    if samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"`path` must hold WAV files of one channel, with samples. Received: {name} of the shape {samples.shape}."
        )
    return samples.astype("float32") / 32768


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Return samples, int16 (T,), as the bytes of a WAV file of 16-bit PCM."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()
