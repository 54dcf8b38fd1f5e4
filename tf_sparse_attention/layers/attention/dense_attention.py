"""Attention to every key as a Keras layer."""

from typing import Any

import keras

from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.patterns.stride import Stride


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class DenseAttention(AttentionLayer):
    """Multi-head attention in which every query sees every key, in a causal call all earlier ones, in O(T S).

    For what is worth that: cross-attention of a decoder to a source that is not long, a few heads beside sparse ones,
    and comparisons. Softmax of q . k / sqrt(key_dim), as `keras.layers.MultiHeadAttention`, whose weights it takes;
    unlike that it has positions, a cache and a place in `MixedAttention`. Vaswani et al. 2017, "Attention is all you
    need", section 3.2.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        **kwargs: the other arguments of `AttentionLayer`; `position="relative"` needs a `max_distance`.

    Raises:
        ValueError: for a wrong argument.

    Example:
        >>> x, source = keras.random.normal((2, 30, 64)), keras.random.normal((2, 50, 64))
        >>> tuple(DenseAttention(num_heads=4, key_dim=16)(x, source).shape)
        (2, 30, 64)
    """

    def __init__(self, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        self._pattern = Stride(1)
        if self.position == "relative" and self.max_distance is None:
            raise ValueError(
                "`max_distance` must be given with position='relative': a query sees keys at any distance. "
                "Received: max_distance=None."
            )
