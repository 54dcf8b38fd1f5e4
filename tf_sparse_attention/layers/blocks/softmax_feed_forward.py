"""Feed-forward layer with a softmax: attention to persistent vectors."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.data_parallel import SeedGenerator
from tf_sparse_attention.layers.parts.persistent_vectors import PersistentVectors
from tf_sparse_attention.ops.attend import Dropout, attend_persistent
from tf_sparse_attention.ops.shapes import merge_heads, unmerge_heads
from tf_sparse_attention.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SoftmaxFeedForward(keras.layers.Layer):
    """Feed-forward layer with a softmax instead of the activation: softmax(x K) V, in O(T M D).

    Each position attends to `num_persistent` persistent vectors. It is the variant "FF-attn" of Sukhbaatar et al. 2019
    ("Augmenting self-attention with persistent memory", section 5.3), whose softmax `AllAttention` merges with the
    softmax of the window. A replacement for `FeedForward` in a `TransformerBlock`.

    Args:
        num_persistent: M, number of keys and values.
        num_heads: number of parts of the channels, each with separate vectors; must divide the channels. Default 1.
        dropout: dropout rate of the weights of the vectors, in [0, 1). Default 0.
        seed: integer seed of the initial vectors and the dropout.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: float (B, T, D).
        training: whether to apply dropout.

    Returns:
        Float (B, T, D).

    Raises:
        ValueError: if an argument is invalid, or `num_heads` does not divide the channels.

    Example:
        >>> tuple(SoftmaxFeedForward(num_persistent=256)(keras.random.normal((2, 10, 64))).shape)
        (2, 10, 64)
    """

    def __init__(
        self, num_persistent: int, num_heads: int = 1, dropout: float = 0.0, seed: int | None = None, **kwargs: Any
    ) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(**kwargs)
        checks.check_count("num_persistent", num_persistent)
        checks.check_count("num_heads", num_heads)
        checks.check_rate("dropout", dropout)
        checks.check_optional_count("seed", seed, minimum=0)
        self.supports_masking = True
        self.num_persistent = num_persistent
        self.num_heads = num_heads
        self.dropout = dropout
        self.seed = seed
        self._seeds = SeedGenerator(seed) if dropout > 0 else None

    def build(self, inputs_shape: Shape) -> None:
        size: Any = inputs_shape[-1]  # always known
        if size % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the number of features. "
                f"Received: num_heads={self.num_heads}, inputs of shape {tuple(inputs_shape)}."
            )
        size //= self.num_heads
        self._vectors = PersistentVectors(
            self.num_heads, self.num_persistent, size, size, seed=self.seed, dtype=self.dtype_policy, name="vectors"
        )
        self._scale = size**-0.5

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        dropout = Dropout.of_call(self.dropout, self._seeds, training)
        query = unmerge_heads(inputs[:, None], self.num_heads) * self._scale
        return merge_heads(attend_persistent(query, self._vectors.read(), dropout))[:, 0]

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> Config:
        names = ("num_persistent", "num_heads", "dropout", "seed")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
