"""Decodes and encodes WAV files of 16-bit PCM."""

import io
import os
import wave
from typing import NamedTuple

import numpy as np


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


def decode_mono(content: bytes, name: str | os.PathLike, sample_rate: int) -> np.ndarray:
    """Decode a WAV file of one channel and `sample_rate` to float32 (N,) in [-1, 1).

    Raises:
        ValueError: If the file cannot be read, or has another rate, several channels or no samples. The message has the
            `name`.
    """
    recording = decode_wav(content)
    if isinstance(recording, str):
        raise ValueError(f"`path` must hold WAV files of 16 bits. Received: {name}, {recording}.")
    samples, rate = recording
    if rate != sample_rate:
        raise ValueError(
            f"`sample_rate` must be {rate}, the rate of {name}, which is not resampled. "
            f"Received: sample_rate={sample_rate}."
        )
    if samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"`path` must hold WAV files of one channel, with samples. Received: {name} of shape {samples.shape}."
        )
    return samples.astype("float32") / 32768


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode samples, int16 (T,), as a WAV file of 16-bit PCM."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()
