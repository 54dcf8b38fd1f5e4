"""Log-mel features of audio."""

from typing import Any

import numpy as np

from tf_sparse_attention.checks import check_count, check_not_negative, check_positive
from tf_sparse_attention.data.tokenizers.tokenizer import is_tensor

FLOOR = 1e-8  # added to powers, because the logarithm of silence is infinite


class LogMel:
    """Log-mel features: log(P + 1e-8) for the power P in mel bands of each window.

    Each sample is reduced by `pre_emphasis` times the previous sample. Windows are Hamming windows, and the power is
    |FFT|^2 divided by the size of the FFT (the next power of two). Bands are triangular and evenly spaced on the mel
    scale. N samples give 1 + (N - window) // hop frames. Recordings shorter than a window are padded with silence.

    Args:
        sample_rate: samples per second. Default 16,000.
        num_bands: F. Default 40; 80 is common too.
        window: seconds. Default 0.025.
        hop: seconds between the starts of windows. Default 0.010.
        pre_emphasis: factor of the pre-emphasis filter; 0 for none. Default 0.97.
        lowest: lower end of the bands in Hz. Default 20.
        highest: upper end in Hz. None: half the sample rate.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> tuple(LogMel()(np.zeros(16_000, "float32")).shape)
    (98, 40)
    """

    def __init__(
        self,
        sample_rate: int = 16_000,
        num_bands: int = 40,
        window: float = 0.025,
        hop: float = 0.010,
        pre_emphasis: float = 0.97,
        lowest: float = 20.0,
        highest: float | None = None,
    ) -> None:
        check_count("sample_rate", sample_rate)
        check_count("num_bands", num_bands)
        for name, value in {"window": window, "hop": hop}.items():
            check_positive(name, value)
        check_not_negative("pre_emphasis", pre_emphasis)
        highest = sample_rate / 2 if highest is None else highest
        if not 0 <= lowest < highest <= sample_rate / 2:
            raise ValueError(
                "`lowest` and `highest` must be in [0, sample_rate / 2], in this order. "
                f"Received: lowest={lowest}, highest={highest}, sample_rate={sample_rate}."
            )
        self.sample_rate, self.num_bands, self.window, self.hop = sample_rate, num_bands, window, hop
        self.pre_emphasis, self.lowest, self.highest = pre_emphasis, float(lowest), float(highest)
        self.window_samples, self.hop_samples = max(1, round(window * sample_rate)), max(1, round(hop * sample_rate))

    def __call__(self, samples: Any, num_samples: Any = None) -> Any:
        """Compute features, float32 (..., frames, F), with TensorFlow for tensors and with NumPy for arrays.

        Args:
            samples: float (..., N) in [-1, 1].
            num_samples: int (...), number of samples before the padding on the right. The first
                `num_frames(num_samples)` frames do not depend on the padding. Default: None, no padding.
        """
        if is_tensor(samples):
            return self._compute_tensor(samples, num_samples)
        samples = np.asarray(samples, "float32")
        samples = np.concatenate([samples[..., :1], samples[..., 1:] - self.pre_emphasis * samples[..., :-1]], axis=-1)
        if num_samples is not None:
            samples = np.where(np.arange(samples.shape[-1]) < np.asarray(num_samples)[..., None], samples, 0)
        missing = max(0, self.window_samples - samples.shape[-1])
        samples = np.pad(samples, [(0, 0)] * (samples.ndim - 1) + [(0, missing)]).astype("float32")
        frames = np.lib.stride_tricks.sliding_window_view(samples, self.window_samples, axis=-1)
        frames = frames[..., :: self.hop_samples, :] * np.hamming(self.window_samples).astype("float32")
        powers = np.abs(np.fft.rfft(frames, self._fft_size)).astype("float32") ** 2 / self._fft_size
        return np.log(powers @ self._bands() + np.float32(FLOOR))

    def _compute_tensor(self, samples, num_samples):
        import tensorflow as tf

        samples = tf.cast(samples, tf.float32)
        samples = tf.concat([samples[..., :1], samples[..., 1:] - self.pre_emphasis * samples[..., :-1]], axis=-1)
        if num_samples is not None:
            is_real = tf.range(tf.shape(samples)[-1]) < tf.cast(num_samples, tf.int32)[..., None]
            samples = tf.where(is_real, samples, 0.0)
        missing = tf.maximum(0, self.window_samples - tf.shape(samples)[-1])
        paddings = [[0, 0]] * (samples.shape.rank - 1) + [[0, missing]]
        frames = tf.signal.frame(tf.pad(samples, paddings), self.window_samples, self.hop_samples)
        frames *= tf.signal.hamming_window(self.window_samples, periodic=False)
        powers = tf.abs(tf.signal.rfft(frames, [self._fft_size])) ** 2 / self._fft_size  # (..., frames, bins)
        return tf.math.log(tf.tensordot(powers, self._bands(), 1) + FLOOR)

    def num_frames(self, num_samples: Any) -> Any:
        """Return the numbers of frames, int32 (...), for numbers of samples, int (...)."""
        if not is_tensor(num_samples):
            return 1 + np.maximum(0, np.asarray(num_samples, "int32") - self.window_samples) // self.hop_samples
        import tensorflow as tf

        return 1 + tf.maximum(0, tf.cast(num_samples, tf.int32) - self.window_samples) // self.hop_samples

    @property
    def _fft_size(self):
        return 1 << (self.window_samples - 1).bit_length()

    def _bands(self):
        """Return the weight of each frequency in each band, float32 (fft_size / 2 + 1, F)."""
        frequencies = np.arange(self._fft_size // 2 + 1) * self.sample_rate / self._fft_size
        edges = np.linspace(_mel(self.lowest), _mel(self.highest), self.num_bands + 2)
        low, peak, high = edges[:-2], edges[1:-1], edges[2:]
        mel = _mel(frequencies)[:, None]
        weights = np.maximum(0, np.minimum((mel - low) / (peak - low), (high - mel) / (high - peak)))
        weights[0] = 0  # exclude the DC component
        return weights.astype("float32")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("sample_rate", "num_bands", "window", "hop", "pre_emphasis", "lowest", "highest")
        return {name: getattr(self, name) for name in names}


def _mel(hertz):
    return 1127 * np.log(1 + hertz / 700)
