"""Features of sound: the logarithm of mel bands."""

from typing import TYPE_CHECKING, Any

from tf_sparse_attention.checks import check_count, check_not_negative, check_positive

if TYPE_CHECKING:
    import tensorflow as tf

FLOOR = 1e-8  # is added to powers, so that silence has a logarithm


class LogMel:
    """log(P + 1e-8) of the power P in mel bands, of windows of a recording, as operations of TensorFlow (`tf.signal`).

    Each sample minus `pre_emphasis` times the one before; Hamming windows; power |FFT|^2 / size of the FFT, the next
    power of two; triangular bands, evenly spaced on the mel scale. N samples make 1 + (N - window) // hop frames; a
    recording shorter than a window is padded to one with silence.

    Args:
        sample_rate: samples a second. Default 16,000.
        num_bands: F. Default 40; 80 is common too.
        window: seconds. Default 0.025.
        hop: seconds between the starts of windows. Default 0.010.
        pre_emphasis: default 0.97; 0: none.
        lowest: lower end of the bands in Hz. Default 20.
        highest: upper end in Hz. None: half the sample rate.

    Raises:
        ValueError: for a wrong argument.

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

    def __call__(self, samples: Any) -> "tf.Tensor":
        """Returns the features, float32 (..., frames, F), of samples in [-1, 1], float (..., N)."""
        import tensorflow as tf

        samples = tf.cast(samples, tf.float32)
        emphasised = tf.concat([samples[..., :1], samples[..., 1:] - self.pre_emphasis * samples[..., :-1]], axis=-1)
        missing = tf.maximum(0, self.window_samples - tf.shape(samples)[-1])
        paddings = [[0, 0]] * (samples.shape.rank - 1) + [[0, missing]]
        frames = tf.signal.frame(tf.pad(emphasised, paddings), self.window_samples, self.hop_samples)
        frames *= tf.signal.hamming_window(self.window_samples, periodic=False)
        size = 1 << (self.window_samples - 1).bit_length()
        powers = tf.abs(tf.signal.rfft(frames, [size])) ** 2 / size  # (..., frames, size / 2 + 1)
        return tf.math.log(tf.tensordot(powers, self._bands(size // 2 + 1), 1) + FLOOR)

    def _bands(self, num_bins):
        import tensorflow as tf

        limits = self.sample_rate, self.lowest, self.highest
        return tf.signal.linear_to_mel_weight_matrix(self.num_bands, num_bins, *limits)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        names = ("sample_rate", "num_bands", "window", "hop", "pre_emphasis", "lowest", "highest")
        return {name: getattr(self, name) for name in names}
