"""Strided attention of the Sparse Transformer."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.factorized_attention import check_heads, divide_heads
from tf_sparse_attention.patterns.stride import Stride
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class StridedAttention(AttentionLayer):
    """Strided attention: each query attends to the last positions and every `stride`-th one, in O(T (l + T / l)).

    With l = `stride`, the local part attends to keys j with 0 <= i - j < l under a causal mask, and |i - j| < l
    without. The strided part attends to keys with (i - j) mod l = 0, and j <= i under a causal mask. Two layers connect
    any two positions, in O(T sqrt(T)) if l is about sqrt(T). Suited to data with a period, such as the rows of an
    image. Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 4.3.

    Note: differs from the paper's text, whose local part includes i - l, one position more than its published code.
    That position belongs to the strided part, so the union of both parts is the same.

    Any length works. A sequence no longer than `stride` has only the query's own position in the strided part.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        stride: l, about the square root of the sequence length, or the length of a row. Default 128.
        heads: "split" (default): the first half of the heads, rounded up, has the local part, the others the strided
            part (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads of a
            layer have one part, the local part if `layer_index` is even (equation 6).
        layer_index: index of the layer from 0, for "interleaved" only; `Backbone` sets it.
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` of "relative" is the stride by default: larger
            distances are clipped.

    Raises:
        ValueError: if an argument is invalid, if a single head is split, or if "interleaved" has no `layer_index`.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = StridedAttention(num_heads=4, key_dim=16, stride=32)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        stride: int = 128,
        heads: str = "split",
        layer_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        check_heads(num_heads, heads, layer_index)
        checks.check_count("stride", stride)
        self.stride = stride
        self.heads = heads
        self.layer_index = layer_index
        self._pattern = divide_heads(num_heads, heads, layer_index, Window(stride), [Stride(stride)])
        if self.position == "relative" and self.max_distance is None:
            self.max_distance = stride  # also of interleaved layers, whose patterns differ in `reach`

    def get_config(self) -> Config:
        names = ("stride", "heads", "layer_index")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
