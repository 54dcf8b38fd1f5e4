"""Data sets of TFDS with sound and text."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.optional import import_tfds
from tf_sparse_attention.data.sources.log_mel import LogMel
from tf_sparse_attention.data.sources.reading import examples_in_order
from tf_sparse_attention.data.sources.speech_source import CHARACTER, Utterance, characters_of
from tf_sparse_attention.data.sources.text_source import find_builder, find_text_feature
from tf_sparse_attention.data.sources.tfds_preparation import iterate, making_builder, prepare


class SoundSet:
    """The recordings of a data set of TFDS, a `SpeechSource` of characters: the feature with sound, and that with text.

    Sound is of 16 bits, as integers; the sample rate of `LogMel` must be that of the set, if it says one.

    Args:
        name: of the data set with its configuration, such as "librispeech".
        data_dir: folder of TFDS. None: its own default.
        local_dir: folder with the files that the builder would download. None: they are downloaded.
        try_gcs: whether prepared data may be read from the public bucket of TFDS. Default False.
        **log_mel: arguments of `LogMel`.

    Raises:
        ValueError: if there is no such data set, it has no sound or no text, another sample rate, several channels, or
            sound of another kind.
    """

    unit = CHARACTER
    labels: tuple[str, ...] | None = None

    def __init__(
        self,
        name: str,
        data_dir: str | os.PathLike | None = None,
        local_dir: str | os.PathLike | None = None,
        try_gcs: bool = False,
        **log_mel: Any,
    ) -> None:
        self._log_mel, self._local_dir, self._try_gcs = LogMel(**log_mel), local_dir, try_gcs
        with making_builder(data_dir):
            self._builder = find_builder(import_tfds(), name, data_dir=data_dir, try_gcs=try_gcs)
        info = self._builder.info
        self.name = info.full_name
        self._sound = _find_sound(info.features)
        self._text = find_text_feature(info.features)
        _check_sound(info.features[self._sound], self.name)
        rate = info.features[self._sound].sample_rate
        if rate is not None and rate != self._log_mel.sample_rate:
            raise ValueError(
                f"`sample_rate` must be that of the data set, which is not resampled. Received: sample_rate="
                f"{self._log_mel.sample_rate}, {rate} samples a second in {self.name}."
            )
        self.fingerprint = f"{self.name}#{self._sound},{self._text}"
        self.data_dir = str(self._builder.data_dir_root)
        self.num_features = self._log_mel.num_bands
        self.description: dict[str, Any] = self._log_mel.get_config()

    def utterances(self, split: str) -> Iterator[Utterance]:
        """Iterates over the recordings of a split; it may be a part of one in the syntax of TFDS."""
        import tensorflow as tf

        prepare(self._builder, self._local_dir, self._try_gcs)
        examples = examples_in_order(self._builder, split)

        def element(example):
            samples = tf.ensure_shape(tf.cast(example[self._sound], tf.float32) / 32768, (None,))
            return self._log_mel(samples), example[self._text], tf.reduce_max(tf.abs(samples)), tf.size(samples)

        elements = iterate(examples.map(element).prefetch(2), self._builder)
        for number, (features, text, loudest, length) in enumerate(elements):
            if loudest > 1 or not length:
                found = "none" if not length else f"one of {round(float(loudest) * 32768)}"
                raise ValueError(f"`tfds` must have samples of 16 bits. Received: {found} in {split}[{number}].")
            written = text.numpy().decode("utf-8", errors="replace")
            yield Utterance(f"{split}[{number}]", np.asarray(features), characters_of(written))


def _check_sound(feature, name):
    shape, dtype = tuple(feature.shape), np.dtype(feature.np_dtype)
    if shape != (None,) or not np.issubdtype(dtype, np.integer):
        raise ValueError(
            "`tfds` must be a data set with sound of one channel, of 16 bits as integers. "
            f"Received: {name} with {dtype.name} of shape {shape}."
        )


def _find_sound(features):
    """Returns the name of the feature with sound."""
    library = import_tfds()
    found = [name for name, feature in features.items() if isinstance(feature, library.features.Audio)]
    if len(found) != 1:
        raise ValueError(
            f"`tfds` must be a data set with one feature of sound. Received: features {', '.join(features)}."
        )
    return found[0]
