"""Strided attention as a Keras layer."""

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
    """Multi-head attention to the last positions and to every `stride`-th one before, in O(T (l + T / l)).

    With l = `stride`: the local part sees the keys j with 0 <= i - j < l if causal, |i - j| < l otherwise; the far part
    those with (i - j) mod l = 0, j <= i if causal. Two layers, or two heads and a layer on top, pass on information
    between any two positions; with l near the square root of T that costs O(T sqrt(T)). It suits data with a period,
    such as the rows of an image (Child et al. 2019, section 4.3).

    Note: differs from the paper's text, whose local set reaches back to i - l, one position more than its published
    code; that position is in the far part. The union of both is the same, with "merged" there is no difference.

    Any length works. A sequence no longer than `stride` has a far part of the query's own position alone.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        stride: l, about the square root of the sequence, or the length of a row. Default 128.
        heads: "split": the first half of the heads (of an odd number the larger half) has the local part, the others
            the far one (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads
            have one of them, the local one in layers of an even `layer_index` (equation 6). Default "split".
        layer_index: the number of the layer from 0, for "interleaved" alone; `Backbone` fills it in.
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` is by default the stride: those of the far
            part are clipped unless it is larger.

    Raises:
        ValueError: for a wrong argument, one head to be split, and "interleaved" without `layer_index`.

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
