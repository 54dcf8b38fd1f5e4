"""Reads and writes WAV files."""

import io
import wave
from typing import NamedTuple

import numpy as np


class Recording(NamedTuple):
    """One recording.

    Attributes:
        samples: int16 (T,), or (T, channels).
        sample_rate: samples a second.
    """

    samples: np.ndarray
    sample_rate: int


def read_wav(content: bytes) -> Recording | str:
    """Returns the recording in the bytes of a WAV file of 16-bit PCM, or as text why it cannot be read."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            width, channels, length = file.getsampwidth(), file.getnchannels(), file.getnframes()
            rate, found = file.getframerate(), file.readframes(length)
    except (wave.Error, EOFError, RuntimeError) as error:  # the last of a chunk that is longer than the file
        return f"which cannot be read: {str(error) or 'it ends early'}"
    if width != 2:
        return f"which has {8 * width} bits a sample, not 16"
    if len(found) != length * channels * width:
        return f"which cannot be read: {len(found) // (channels * width)} of its {length} samples are there"
    samples = np.frombuffer(found, "<i2").astype(np.int16)
    return Recording(samples.reshape(-1, channels) if channels > 1 else samples, rate)


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Return samples, int16 (T,), as the bytes of a WAV file of 16-bit PCM."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()
