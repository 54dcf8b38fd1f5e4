"""Data sets of TFDS without a download, and WAV files."""

import io
import wave

import numpy as np
import tensorflow_datasets as tfds

RATE = 8000


def tone(frequency, seconds=0.3):
    return (8000 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * RATE)) / RATE)).astype("int16")


def as_wav(samples, rate=RATE, width=2):
    """Return a WAV file of samples (T,), or (T, C) of several channels."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(samples.astype({1: "u1", 2: "<i2"}[width]).tobytes())
    return file.getvalue()


def register(name, features, **splits):
    """Register a class of a data set, with a dictionary of features and a list of examples per split, and return it."""
    if isinstance(features, dict):
        features = tfds.features.FeaturesDict(features)

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=features)

    def split_generators(self, download_manager):
        return {split: list(enumerate(examples)) for split, examples in splits.items()}

    members = {"VERSION": tfds.core.Version("1.0.0"), "_info": info, "_split_generators": split_generators}
    members["_generate_examples"] = enumerate
    return type(name, (tfds.core.GeneratorBasedBuilder,), {**members, "__module__": __name__})
