"""The sine and cosine positions of the first Transformer as a Keras layer."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.rotary import cosines_and_sines
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SinusoidalEmbedding(keras.layers.Layer):
    """Add sines and cosines of the position (Vaswani et al. 2017, section 3.5), in the order of tensor2tensor.

    With C = D // 2 and angle a_c = position max_wavelength^(-c / (C - 1)), c = 0 .. C - 1: the first C channels get
    sin a_c, the next C cos a_c; with odd D the last one gets nothing.

    Note: differs from the paper, which mixes sines and cosines and divides by C, as the published code does.

    Args:
        max_wavelength: largest wavelength over 2 pi, in positions. Default 10,000.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D).
        positions: int (B, T), their positions. None: from 0 on.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: for a wavelength that is not positive.

    Example:
        >>> tuple(SinusoidalEmbedding()(keras.random.normal((2, 100, 64))).shape)
        (2, 100, 64)
    """

    def __init__(self, max_wavelength: float = 10_000.0, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_positive("max_wavelength", max_wavelength)
        self.supports_masking = True
        self.max_wavelength = max_wavelength

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        length, size = shape(inputs)[1], inputs.shape[-1]
        count = size // 2
        rates = float(self.max_wavelength) ** (-np.arange(count) / max(count - 1, 1))
        # float32 whatever the inputs are: half precision cannot tell apart positions above 256.
        dtype = "float64" if keras.backend.standardize_dtype(inputs.dtype) == "float64" else "float32"
        positions = ops.arange(length) if positions is None else positions
        cosines, sines = cosines_and_sines(positions, rates, dtype)
        signal = ops.concatenate([sines, cosines], axis=-1)
        signal = ops.pad(signal, [(0, 0)] * (len(signal.shape) - 1) + [(0, size % 2)])
        return inputs + ops.cast(signal, inputs.dtype)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
