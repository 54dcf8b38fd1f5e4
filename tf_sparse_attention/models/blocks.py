"""Transformer blocks of `Backbone` and `Encoder`."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import layers
from tf_sparse_attention.models.attention_parts import make_attention, parse_attention
from tf_sparse_attention.ops.random_bits import derived_seed

ATTENTION, CROSS_ATTENTION, FEED_FORWARD = 0, 1, 2  # derived seeds of a block; dropout uses the seed itself


def make_blocks(
    attention: Sequence[Any],
    num_layers: int,
    dtype: Any,
    num_local_layers: int = 0,
    intermediate_dim: int | None = None,
    activation: str = "gelu",
    activation_dropout: float = 0.0,
    layer_norm_epsilon: float = 1e-6,
    seed: int | None = None,
    cross_attention: Sequence[Any] | None = None,
    mixed: bool = True,
    **arguments: Any,
) -> list[keras.layers.Layer]:
    """Create the blocks of a model, "block_0" and so on, without building them.

    Args:
        attention: plain data of the attention, see `parse_attention`.
        num_layers: number of blocks.
        dtype: dtype policy of all layers.
        num_local_layers: number of initial blocks with only the local part, which gets the heads of all parts.
        intermediate_dim: size inside the feed-forward. None: no feed-forward.
        activation: activation of the feed-forward.
        activation_dropout: dropout rate inside the feed-forward.
        layer_norm_epsilon: epsilon of the layer norms.
        seed: integer or None; seeds of all layers are derived from it.
        cross_attention: plain data of the cross-attention. None: no cross-attention.
        mixed: whether to wrap a single part in a `MixedAttention`, too.
        **arguments: other arguments of `TransformerBlock`.
    """
    blocks = []
    parsed = parse_attention(attention, num_layers, num_local_layers)
    across: Sequence[Any] = [None] * num_layers
    if cross_attention is not None:
        across = parse_attention(cross_attention, num_layers, name="cross_attention")
    for index, (parts, cross_parts) in enumerate(zip(parsed, across, strict=True)):
        block_seed = derived_seed(seed, 1, index)  # 0: the embeddings
        sublayers = {"attention": make_attention(parts, index, derived_seed(block_seed, ATTENTION), dtype, mixed=mixed)}
        if intermediate_dim is not None:
            sublayers["feed_forward"] = layers.FeedForward(
                intermediate_dim,
                activation,
                dropout=activation_dropout,
                seed=derived_seed(block_seed, FEED_FORWARD),
                dtype=dtype,
                name="feed_forward",
            )
        if cross_parts is not None:
            cross_seed = derived_seed(block_seed, CROSS_ATTENTION)
            sublayers["cross_attention"] = make_attention(
                cross_parts, index, cross_seed, dtype, name="cross_attention", mixed=mixed
            )
        common = {"epsilon": layer_norm_epsilon, "seed": block_seed, "dtype": dtype, "name": f"block_{index}"}
        blocks.append(layers.TransformerBlock(**sublayers, **arguments, **common))
    return blocks
