"""Axial and sinusoidal position embeddings."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.ops.positions import cosines_and_sines
from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.ops.shapes import shape
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class GridEmbedding(keras.layers.Layer):
    """Axial position embedding: the sum of one learned vector per coordinate in a grid, in row-major order.

    y_t = x_t + sum over the axes k of E_k[coordinate k of t]. The axes correspond to the data, for example (rows,
    columns, channels) for an image. For factorized attention on other data, the axes are (T / stride, stride). Source:
    Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 5.3.

    Args:
        grid: sizes of the axes in row-major order. The product of the sizes is the maximum sequence length.
        seed: integer seed of the initial vectors, which have variance 1 / (number of axes * D).
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D), with T at most the product of `grid`.
        positions: int (B, T), positions of the inputs. None: 0 .. T - 1.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid, or if the sequence is longer than the grid. In a program compiled for
            dynamic lengths, positions past the end wrap around instead.

    Example:
        >>> image = keras.random.normal((2, 32 * 32 * 3, 64))
        >>> tuple(GridEmbedding(grid=(32, 32, 3))(image).shape)
        (2, 3072, 64)
    """

    def __init__(self, grid: Sequence[int], seed: int | None = None, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        self.grid = checks.checked_counts("grid", grid)
        if not self.grid:
            raise ValueError(f"`grid` must have at least one axis. Received: grid={grid!r}.")
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.seed = seed

    def build(self, inputs_shape: Shape) -> None:
        size: Any = inputs_shape[-1]  # never None
        self.tables = [
            self.add_weight(
                name=f"axis_{axis}",
                shape=(length, size),
                initializer=keras.initializers.RandomNormal(
                    stddev=(len(self.grid) * size) ** -0.5, seed=derived_seed(self.seed, axis)
                ),
            )
            for axis, length in enumerate(self.grid)
        ]

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        length = shape(inputs)[1]
        max_length = math.prod(self.grid)
        if positions is None and isinstance(length, int) and length > max_length:
            raise ValueError(
                "`inputs` must be no longer than the grid. "
                f"Received: {length} positions, grid={self.grid} with {max_length} positions."
            )
        positions = ops.arange(length, dtype="int32") if positions is None else ops.cast(positions, "int32")
        total = inputs
        for table, size in zip(reversed(self.tables), reversed(self.grid), strict=True):
            total = total + ops.cast(ops.take(table, positions % size, axis=0), inputs.dtype)
            positions = positions // size
        return total

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "grid": self.grid, "seed": self.seed}


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SinusoidalEmbedding(keras.layers.Layer):
    """Sinusoidal position embedding (Vaswani et al. 2017, section 3.5), in the channel order of tensor2tensor.

    With C = D // 2 and angle a_c = position * max_wavelength^(-c / (C - 1)) for c = 0 .. C - 1, sin a_c is added to
    the first C channels, and cos a_c to the next C channels. If D is odd, the last channel is unchanged.

    Note: differs from the paper, which interleaves sines and cosines, and has C instead of C - 1. The published code
    agrees with this layer.

    Args:
        max_wavelength: longest wavelength divided by 2 pi, in positions. Default 10,000.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D).
        positions: int (B, T), positions of the inputs. None: 0 .. T - 1.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if `max_wavelength` is not positive.

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
        frequencies = float(self.max_wavelength) ** (-np.arange(count) / max(count - 1, 1))
        # float32 even for half-precision inputs: bfloat16 cannot represent all positions above 256.
        dtype = "float64" if keras.backend.standardize_dtype(inputs.dtype) == "float64" else "float32"
        positions = ops.arange(length) if positions is None else positions
        cosines, sines = cosines_and_sines(positions, frequencies, dtype)
        signal = ops.concatenate([sines, cosines], axis=-1)
        signal = ops.pad(signal, [(0, 0)] * (len(signal.shape) - 1) + [(0, size % 2)])
        return inputs + ops.cast(signal, inputs.dtype)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
