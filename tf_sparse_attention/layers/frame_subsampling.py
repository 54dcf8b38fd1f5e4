"""Subsampling of audio frames by strided convolutions."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.layers.parts.call_inputs import zero_padding
from tf_sparse_attention.types import Config, Shape, Tensor

FACTORS = (1, 2, 4)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FrameSubsampling(keras.layers.Layer):
    """Subsampling of audio frames by a factor of 2 or 4 with convolutions, in O(T).

    Each step halves the number of frames from n to ceil(n / 2), with a convolution of kernel size 3 and stride 2 and a
    GELU. Output frame i depends on the input frames 2i - 1, 2i and 2i + 1. Padded frames and frames outside the
    sequence are zeros, so padding does not change the result.

    Merely stacking consecutive frames, without overlap, would lose label changes inside a stack. Overlapping
    convolutions preserve these changes. Each convolution is a dense layer on concatenated frames. Results are therefore
    the same on all backends. The dense layers can be quantized.

    Args:
        factor: 1, 2 or 4. With 1 the frames are unchanged.
        units: number of channels of the result.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, F).
        padding_mask: bool (B, T), False for padding on the right. None: no padding.

    Returns:
        Float (B, ceil(T / factor), units), or (B, T, F) with factor 1. `compute_mask(inputs, padding_mask)` returns
        the padding mask of the result.

    Raises:
        ValueError: if an argument is invalid.

    Example:
        >>> tuple(FrameSubsampling(factor=4, units=64)(keras.random.normal((2, 101, 40))).shape)
        (2, 26, 64)
    """

    def __init__(self, factor: int, units: int, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_choice("factor", factor, FACTORS)
        checks.check_count("units", units)
        self.factor = factor
        self.units = units
        self.supports_masking = True
        names = [f"step_{index}" for index in range(FACTORS.index(factor))]
        self.steps = [
            keras.layers.Dense(units, activation="gelu", dtype=sublayer_policy(self, name), name=name) for name in names
        ]

    def build(self, inputs_shape: Any) -> None:
        size = inputs_shape[-1]
        for step in self.steps:
            step.build((None, None, 3 * size))
            size = self.units
        self.built = True

    def call(self, inputs: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = zero_padding(inputs, padding_mask)
        for step in self.steps:
            padding_mask = None if padding_mask is None else padding_mask[:, ::2]
            x = zero_padding(step(_concatenate_frames(x)), padding_mask)
        return x

    def compute_mask(self, inputs: Tensor, padding_mask: Tensor | None = None) -> Tensor | None:
        return None if padding_mask is None else padding_mask[:, :: self.factor]

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        batch, length, _ = inputs_shape
        length = None if length is None else -(-length // self.factor)
        return (batch, length, self.units) if self.steps else inputs_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "factor": self.factor, "units": self.units}


def _concatenate_frames(x):
    """Concatenate the frames 2i - 1, 2i and 2i + 1, (B, ceil(T / 2), 3F)."""
    batch, length, size = ops.shape(x)[0], ops.shape(x)[1], x.shape[-1]
    x = ops.pad(x, [[0, 0], [0, 1], [0, 0]])[:, : length + length % 2]
    pairs = ops.reshape(x, (batch, (length + 1) // 2, 2 * size))  # (B, ceil(T / 2), 2F)
    before = ops.pad(pairs[:, :-1, size:], [[0, 0], [1, 0], [0, 0]])
    return ops.concatenate([before, pairs], axis=-1)
