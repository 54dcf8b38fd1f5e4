"""Masking of time and frequency bands in training."""

from typing import NamedTuple

import numpy as np

from tf_sparse_attention.checks import check_count, check_not_negative


class FeatureMasks(NamedTuple):
    """Masked time and frequency bands, as in SpecAugment (Park et al. 2019) without time warping.

    Note: differs from the paper in that the number of time bands depends on the length of the recording.

    Attributes:
        time_masks: time bands per 1,000 frames, at least one. Default 0: none.
        time_width: maximum frames in a time band, which is also at most a fifth of the recording. Default 40.
        frequency_masks: number of frequency bands. Default 0.
        frequency_width: maximum features in a frequency band. All bands together never mask all features. Default 8.
    """

    time_masks: float = 0.0
    time_width: int = 40
    frequency_masks: int = 0
    frequency_width: int = 8

    def check(self) -> None:
        """Raise a `ValueError` for a negative number or a width of 0."""
        check_not_negative("time_masks", self.time_masks)
        check_count("frequency_masks", self.frequency_masks, minimum=0)
        for name in ("time_width", "frequency_width"):
            check_count(name, getattr(self, name))

    def apply(self, features: np.ndarray, fill: np.ndarray, seed: tuple[int, ...]) -> np.ndarray:
        """Return a copy of features with masked bands.

        Args:
            features: float32 (T, F).
            fill: float32 (F,), the values of masked bands: the mean of each feature.
            seed: integers that determine the bands.
        """
        rng, masked = np.random.default_rng(seed), np.array(features)
        num_frames, num_features = masked.shape
        for _ in range(max(1, round(self.time_masks * num_frames / 1000)) if self.time_masks else 0):
            width = rng.integers(0, min(self.time_width, num_frames // 5) + 1)
            begin = rng.integers(0, num_frames - width + 1)
            masked[begin : begin + width] = fill
        # A new model maps fully masked features to zeros, where the gradient of layer norms is infinite.
        widest = min(self.frequency_width, (num_features - 1) // max(self.frequency_masks, 1))
        for _ in range(self.frequency_masks):
            width = rng.integers(0, widest + 1)
            begin = rng.integers(0, num_features - width + 1)
            masked[:, begin : begin + width] = fill[begin : begin + width]
        return masked
