"""Dense attention."""

from typing import Any

import keras

from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.patterns.stride import Stride


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class DenseAttention(AttentionLayer):
    """Dense attention: each query attends to every key, or to all earlier keys under a causal mask, in O(T S).

    Use it for cross-attention to short sequences, for a few heads of a `MixedAttention`, and as a baseline. The softmax
    and the weights are the same as in `keras.layers.MultiHeadAttention`. In addition, the layer has position encodings
    and a KV cache. Source: Vaswani et al. 2017, "Attention is all you need", section 3.2.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        **kwargs: the other arguments of `AttentionLayer`. `position="relative"` requires `max_distance`.

    Raises:
        ValueError: if an argument is invalid.

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
                "`max_distance` must be given with position='relative', because keys can be at any distance. "
                "Received: max_distance=None."
            )
