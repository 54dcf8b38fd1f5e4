"""Attention to the query's own block and to the earlier blocks that it selects."""

from typing import Any

import keras

from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.patterns.pattern import Pattern
from tf_sparse_attention.patterns.selected import SelectedBlocks
from tf_sparse_attention.types import Config


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class BlockSelectedAttention(AttentionLayer):
    """Multi-head attention to the query's own block and to the earlier blocks whose mean key it likes best.

    Softmax of q . k / sqrt(key_dim) over the keys of `tsa.patterns.SelectedBlocks`, which says how blocks are chosen,
    with padding and packed documents too, and what it costs: O(T num_blocks block_size), and O(T^2 / block_size) to
    choose. Exactly: however many queries choose a block, none is dropped. Nothing is learned but the projections.

    For causal self-attention alone: call it with `use_causal_mask=True` and without `value`.

    Source: Lu et al. 2025, "MoBA: Mixture of Block Attention for Long-Context LLMs" (arXiv 2502.13189).

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: positions of a block. Default 128.
        num_blocks: blocks that a query sees, with its own. Default 3.
        **kwargs: the other arguments of `AttentionLayer`.

    Raises:
        ValueError: for a wrong argument, and for a call that is not causal self-attention.

    Example:
        >>> layer = BlockSelectedAttention(num_heads=4, key_dim=16, block_size=64, position="rotary")
        >>> tuple(layer(keras.random.normal((2, 1000, 64)), use_causal_mask=True).shape)
        (2, 1000, 64)
    """

    def __init__(
        self, num_heads: int, key_dim: int, *, block_size: int = 128, num_blocks: int = 3, **kwargs: Any
    ) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        self._pattern = SelectedBlocks(block_size, num_blocks)
        self.block_size = block_size
        self.num_blocks = num_blocks

    def make_pattern(self, causal: bool) -> Pattern:
        return self._pattern

    def get_config(self) -> Config:
        return {**super().get_config(), "block_size": self.block_size, "num_blocks": self.num_blocks}
