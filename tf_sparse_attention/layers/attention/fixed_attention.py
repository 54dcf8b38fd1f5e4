"""Fixed attention as a Keras layer."""

from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.factorized_attention import check_heads, divide_heads, num_far_heads
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.summary import Summary
from tf_sparse_attention.types import Config


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FixedAttention(AttentionLayer):
    """Multi-head attention inside blocks and to the last columns of every block, in O(T (l + c T / l)).

    With l = `block_size` and c = `num_summary`: the local part sees the keys of the query's own block, the far part the
    summary columns, the keys j with l - c <= j mod l < l; both up to the query's own position if causal. It suits data
    without a period, such as text (Child et al. 2019, section 4.3), where the paper took l of 128 or 256 and c of 8, 16
    or 32.

    In a causal call the first l - c positions of a sequence have no summary to see: in heads of the far part alone
    their result is zero. Any length works.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: l, positions in a block. Default 128.
        num_summary: c, summary columns of a block. Default 8.
        num_groups: how many different sets of columns the heads of the far part (all heads if "merged") share out: head
            h sees those l - (g + 1) c .. l - g c - 1 with g = h mod `num_groups`. Default 1. The paper found several
            better than larger c (section 4.3).
        heads: "split", "merged" or "interleaved", see `StridedAttention`. Default "split".
        layer_index: the number of the layer from 0, for "interleaved" alone; `Backbone` fills it in.
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` is by default the block size: those of the far
            part are clipped unless it is larger.

    Raises:
        ValueError: for a wrong argument, more summary columns than a block has, and heads that the groups do not
            divide.

    Example:
        >>> x = keras.random.normal((2, 1000, 64))
        >>> layer = FixedAttention(num_heads=4, key_dim=16, block_size=32, num_summary=4)
        >>> tuple(layer(x, use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        block_size: int = 128,
        num_summary: int = 8,
        num_groups: int = 1,
        heads: str = "split",
        layer_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        check_heads(num_heads, heads, layer_index)
        for name, value in (("block_size", block_size), ("num_summary", num_summary), ("num_groups", num_groups)):
            checks.check_count(name, value)
        if num_summary * num_groups > block_size:
            raise ValueError(
                "`num_summary` times `num_groups` must be at most `block_size`. Received: "
                f"num_summary={num_summary}, num_groups={num_groups}, block_size={block_size}."
            )
        self.block_size = block_size
        self.num_summary = num_summary
        self.num_groups = num_groups
        self.heads = heads
        self.layer_index = layer_index
        seeing = num_far_heads(num_heads, heads)
        if seeing % num_groups:
            raise ValueError(
                "`num_groups` must divide the number of heads that see summaries. Received: "
                f"num_groups={num_groups}, {seeing} such heads."
            )
        far = [Summary(block_size, num_summary, group) for group in range(num_groups)]
        self._pattern = divide_heads(num_heads, heads, layer_index, Blocks(block_size, 0, 0), far)
        if self.position == "relative" and self.max_distance is None:
            self.max_distance = block_size  # also of interleaved layers, whose patterns differ in `reach`

    def get_config(self) -> Config:
        names = ("block_size", "num_summary", "num_groups", "heads", "layer_index")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
