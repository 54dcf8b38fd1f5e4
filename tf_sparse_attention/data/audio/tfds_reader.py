"""Reads the sound of a data set of TFDS."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_sparse_attention.data.sources.tfds_reader import MediaReader
from tf_sparse_attention.data.sources.wav_file import Recording


class TfdsReader(MediaReader):
    """The sound of a TFDS data set, which is prepared on first use; see `AudioSource`.

    Args:
        builder: `tfds.core.DatasetBuilder`, one feature of which is sound (`tfds.features.Audio`).
        local_dir: folder with files that the builder would download, or None.
        try_gcs: whether a prepared copy may come from the public bucket of TFDS.
        sample_rate: samples a second, for a data set that does not say. None: what it says.

    Raises:
        ValueError: If it has no sound, or several and none is called "audio", or no sample rate is known.
    """

    def __init__(
        self, builder: Any, local_dir: str | None = None, try_gcs: bool = False, sample_rate: int | None = None
    ) -> None:
        super().__init__(builder, "Audio", "a recording", local_dir, try_gcs)
        rate = self.feature.sample_rate or sample_rate
        if rate is None:
            raise ValueError(
                f"`sample_rate` must be given for a data set that does not say it. Received: None for {self.name}."
            )
        self.sample_rate = int(rate)

    def read(self, split: str) -> Iterator[tuple[str, Recording | str]]:
        """Yields the recordings of a split, with their numbers as names."""
        for name, samples in super().read(split):
            limits = np.iinfo(np.int16)
            if not np.issubdtype(samples.dtype, np.integer):
                yield name, f"of {samples.dtype}, not of 16-bit integers"
            elif samples.size and (samples.min() < limits.min or samples.max() > limits.max):
                yield name, f"from {samples.min()} to {samples.max()}, beyond 16 bits"
            else:
                yield name, Recording(samples.astype(np.int16), self.sample_rate)
