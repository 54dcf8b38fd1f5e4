"""Persistent vectors: learned keys and values."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.ops.random_bits import derived_seed
from tf_sparse_attention.types import Tensor


class PersistentVectors(keras.layers.Layer):
    """Learned keys and values of attention heads (Sukhbaatar et al. 2019, "Augmenting self-attention", section 4.1).

    The weights are small, `key` of variance 1 / H and `value` of variance 1 / M at first, and multiplied by sqrt(H) and
    sqrt(M) when read. The vectors thus start with variance 1 and learn at the rate of the projections.

    Args:
        num_heads: N.
        count: M, vectors per head.
        key_dim: H, size of a key.
        value_dim: Hv, size of a value.
        seed: integer seed of the initial vectors. None: the seed of `keras.utils.set_random_seed`.
        **kwargs: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self, num_heads: int, count: int, key_dim: int, value_dim: int, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.key_dim = key_dim
        self.key = self._vectors("key", (num_heads, count, key_dim), key_dim, derived_seed(seed, 0))
        self.value = self._vectors("value", (num_heads, count, value_dim), count, derived_seed(seed, 1))
        self.built = True

    def _vectors(self, name, sizes, variance, seed):
        normal = keras.initializers.RandomNormal(stddev=variance**-0.5, seed=seed)
        return self.add_weight(name=name, shape=sizes, initializer=normal)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys (N, M, H) and values (N, M, Hv) in the compute dtype."""
        key, value = (ops.cast(weight, self.compute_dtype) for weight in (self.key, self.value))
        return key * self.key_dim**0.5, value * self.count**0.5
