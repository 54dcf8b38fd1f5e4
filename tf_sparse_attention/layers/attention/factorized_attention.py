"""Fixed attention of the Sparse Transformer."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.pattern import Pattern, Union
from tf_sparse_attention.patterns.per_head import Heads, InTurn
from tf_sparse_attention.patterns.stride import Stride
from tf_sparse_attention.patterns.summary import Summary
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FixedAttention(AttentionLayer):
    """Fixed attention: each query attends to its block and summary columns of all blocks, in O(T (l + c T / l)).

    With l = `block_size` and c = `num_summary`, the local part attends to the keys of the query's block. The summary
    part attends to the last c columns of every block, the keys j with l - c <= j mod l < l. Under a causal mask both
    end at the query. Suited to data without a period, such as text. Source: Child et al. 2019, "Generating Long
    Sequences with Sparse Transformers", section 4.3, with l of 128 or 256 and c of 8, 16 or 32.

    Under a causal mask the first l - c positions have no summary, so heads of the summary part return zeros there. Any
    length works.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: l, positions per block. Default 128.
        num_summary: c, summary columns per block. Default 8.
        num_groups: number of different column sets among the heads with a summary part (all heads if "merged"). Head h
            attends to the columns l - (g + 1) c .. l - g c - 1 with g = h mod `num_groups`. Default 1. The paper found
            several sets better than a larger c.
        heads: "split", "merged" or "interleaved", see `StridedAttention`. Default "split".
        layer_index: index of the layer from 0, for "interleaved" only; `Backbone` sets it.
        **kwargs: the other arguments of `AttentionLayer`. `max_distance` of "relative" is the block size by default:
            larger distances are clipped.

    Raises:
        ValueError: if an argument is invalid, if there are more summary columns than a block has, or if `num_groups`
            does not divide the heads with a summary part.

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


HEADS = ("split", "merged", "interleaved")


def check_heads(num_heads: int, heads: str, layer_index: int | None) -> None:
    """Raise a `ValueError` for an invalid `heads`, a single split head, or a missing or superfluous `layer_index`."""
    checks.check_choice("heads", heads, HEADS)
    checks.check_optional_count("layer_index", layer_index, minimum=0)
    if heads == "split" and num_heads == 1:
        raise ValueError(
            "`heads` must be 'merged' or 'interleaved' for a single head, which cannot be split. "
            f"Received: heads={heads!r}, num_heads={num_heads}."
        )
    if (heads == "interleaved") != (layer_index is not None):
        raise ValueError(
            "`layer_index` must be given where `heads` is 'interleaved', and only there. "
            f"Received: layer_index={layer_index}, heads={heads!r}."
        )


def num_far_heads(num_heads: int, heads: str) -> int:
    """Return the number of heads with the far pattern; all heads of interleaved layers."""
    return num_heads // 2 if heads == "split" else num_heads


def divide_heads(num_heads: int, heads: str, layer_index: int | None, near: Pattern, far: Sequence[Pattern]) -> Pattern:
    """Return the pattern of all heads.

    Args:
        num_heads: N.
        heads: "split": the first half of the heads, rounded up, has the near pattern, the others a far pattern
            (equation 8). "merged": every head has the union of both (equation 7). "interleaved": all heads of a layer
            have one of them, the near pattern if `layer_index` is even (equation 6).
        layer_index: index of the layer, for "interleaved".
        near: pattern.
        far: patterns that the heads take in turn.
    """
    if layer_index is not None:  # "interleaved"
        return near if layer_index % 2 == 0 else in_turn(far)
    if heads == "merged":
        return in_turn([Union((near, pattern)) for pattern in far])
    own = num_far_heads(num_heads, heads)
    return Heads(((num_heads - own, near), (own, in_turn(far))))


def in_turn(patterns: Sequence[Pattern]) -> Pattern:
    """Return the pattern of heads that take some patterns in turn."""
    return patterns[0] if len(patterns) == 1 else InTurn(tuple(patterns))
