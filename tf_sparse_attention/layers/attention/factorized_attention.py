"""Strided and fixed attention of the Sparse Transformer."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.patterns.blocks import Blocks
from tf_sparse_attention.patterns.pattern import Heads, InTurn, Pattern, Union
from tf_sparse_attention.patterns.stride import Stride
from tf_sparse_attention.patterns.summary import Summary
from tf_sparse_attention.patterns.window import Window
from tf_sparse_attention.types import Config

HEADS = ("split", "merged", "interleaved")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class StridedAttention(AttentionLayer):
    """Strided attention: each query attends to nearby positions and to every `stride`-th position.

    With l = `stride`, the local part attends to keys j with |i - j| < l, or with 0 <= i - j < l under a causal mask.
    The strided part attends to keys with (i - j) mod l = 0, and j <= i under a causal mask. The cost is
    O(T (l + T / l)). Two layers connect any two positions, in O(T sqrt(T)) if l is about sqrt(T). Suited to periodic
    data, such as images with rows of l pixels. Source: Child et al. 2019, "Generating Long Sequences with Sparse
    Transformers", section 4.3.

    Note: differs from the paper's text, whose local part includes i - l. The published code excludes i - l. The union
    of both parts is the same, because the strided part includes i - l.

    The sequence can have any length. If the length is at most `stride`, the strided part attends only to the query's
    position.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        stride: l, about the square root of the sequence length, or the length of a row. Default 128.
        heads: "split" (default): the first half of the heads, rounded up, has the local part, the rest the strided part
            (equation 8). "merged": every head has the union of both parts (equation 7). "interleaved": all heads
            have the local part if `layer_index` is even, otherwise the strided part (equation 6).
        layer_index: index of the layer, from 0, only for "interleaved". `Backbone` sets it.
        **kwargs: the other arguments of `AttentionLayer`. For `position="relative"`, `max_distance` is `stride` by
            default.

    Raises:
        ValueError: if an argument is invalid, if "split" has a single head, or if "interleaved" has no `layer_index`.

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
        _check_heads(num_heads, heads, layer_index)
        checks.check_count("stride", stride)
        self.stride = stride
        self.heads = heads
        self.layer_index = layer_index
        self._pattern = _combine(num_heads, heads, layer_index, Window(stride), [Stride(stride)])
        if self.position == "relative" and self.max_distance is None:
            self.max_distance = stride  # not `reach`, which differs between interleaved layers

    def get_config(self) -> Config:
        names = ("stride", "heads", "layer_index")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class FixedAttention(AttentionLayer):
    """Fixed attention: each query attends to its block and to summary columns of all blocks, in O(T (l + c T / l)).

    With l = `block_size` and c = `num_summary`, the local part attends to the keys of the query's block. The summary
    part attends to the last c columns of every block, the keys j with l - c <= j mod l < l. Under a causal mask both
    parts end at the query. Suited to data without periodic structure, such as text. Source: Child et al. 2019,
    "Generating Long Sequences with Sparse Transformers", section 4.3, with l of 128 or 256 and c of 8, 16 or 32.

    The sequence can have any length. Under a causal mask the first l - c positions have no summary column to attend to,
    so the attention output of heads with only the summary part is zero there.

    Args:
        num_heads: N, number of heads.
        key_dim: H, size of each head for queries and keys.
        block_size: l, positions per block. Default 128.
        num_summary: c, summary columns per block. Default 8.
        num_groups: number of different sets of summary columns. Heads with a summary part are numbered h = 0, 1, ...
            Head h uses set g = h mod `num_groups`: the columns l - (g + 1) c .. l - g c - 1. Default 1. In the paper
            several sets work better than a larger c.
        heads: "split", "merged" or "interleaved", see `StridedAttention`. Default "split".
        layer_index: index of the layer, from 0, only for "interleaved". `Backbone` sets it.
        **kwargs: the other arguments of `AttentionLayer`. For `position="relative"`, `max_distance` is `block_size` by
            default.

    Raises:
        ValueError: if an argument is invalid, if a block has fewer than `num_summary` times `num_groups` columns, or if
            `num_groups` does not divide the number of heads with a summary part.

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
        _check_heads(num_heads, heads, layer_index)
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
        num_summary_heads = _num_distant_heads(num_heads, heads)
        if num_summary_heads % num_groups:
            raise ValueError(
                "`num_groups` must divide the number of heads with a summary part. Received: "
                f"num_groups={num_groups}, {num_summary_heads} heads with a summary part."
            )
        summaries = [Summary(block_size, num_summary, group) for group in range(num_groups)]
        self._pattern = _combine(num_heads, heads, layer_index, Blocks(block_size, 0, 0), summaries)
        if self.position == "relative" and self.max_distance is None:
            self.max_distance = block_size  # not `reach`, which differs between interleaved layers

    def get_config(self) -> Config:
        names = ("block_size", "num_summary", "num_groups", "heads", "layer_index")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check_heads(num_heads: int, heads: str, layer_index: int | None) -> None:
    checks.check_choice("heads", heads, HEADS)
    checks.check_optional_count("layer_index", layer_index, minimum=0)
    if heads == "split" and num_heads == 1:
        raise ValueError(
            "`heads` must be 'merged' or 'interleaved' for a single head. "
            f"Received: heads={heads!r}, num_heads={num_heads}."
        )
    if (heads == "interleaved") != (layer_index is not None):
        raise ValueError(
            "`layer_index` must be given with heads='interleaved', and must otherwise be None. "
            f"Received: layer_index={layer_index}, heads={heads!r}."
        )


def _num_distant_heads(num_heads: int, heads: str) -> int:
    """Return the number of heads with a distant part. With "interleaved" these are all heads of odd layers."""
    return num_heads // 2 if heads == "split" else num_heads


def _combine(
    num_heads: int, heads: str, layer_index: int | None, local: Pattern, distant: Sequence[Pattern]
) -> Pattern:
    """Combine the local pattern with the distant patterns, between which the heads alternate."""
    if heads == "merged":
        distant = [Union((local, pattern)) for pattern in distant]
    combined = distant[0] if len(distant) == 1 else InTurn(tuple(distant))
    if heads == "merged":
        return combined
    if layer_index is not None:  # "interleaved"
        return local if layer_index % 2 == 0 else combined
    count = _num_distant_heads(num_heads, heads)
    return Heads(((num_heads - count, local), (count, combined)))
