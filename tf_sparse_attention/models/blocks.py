"""The blocks of `Backbone` and `Encoder`."""

from collections.abc import Sequence
from typing import Any

import keras

from tf_sparse_attention import layers
from tf_sparse_attention.models.attention_parts import make_attention, parse_attention

# A block has this many seeds: the first its own, the next those of its attention's parts, one for its feed-forward.
SEEDS_OF_A_BLOCK = 1000


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
    mixed: bool = True,
    **arguments: Any,
) -> list[keras.layers.Layer]:
    """Returns the blocks of a model, "block_0" and so on, not built.

    Args:
        attention: plain data of the attention, see `parse_attention`.
        num_layers: number of blocks.
        dtype: dtype policy of all their layers.
        num_local_layers: number of first blocks in which the local part has the heads of all parts.
        intermediate_dim: size inside the feed-forward. None: blocks have none.
        activation: of the feed-forward.
        activation_dropout: rate inside the feed-forward.
        layer_norm_epsilon: of the layer norms.
        seed: integer or None; each layer gets another one derived from it.
        mixed: whether attention of a single part is a `MixedAttention` as well.
        **arguments: further ones of `TransformerBlock`.
    """
    blocks = []
    for index, parts in enumerate(parse_attention(attention, num_layers, num_local_layers)):
        block_seed = None if seed is None else seed + SEEDS_OF_A_BLOCK * (index + 1)
        feed_forward = None
        if intermediate_dim is not None:
            feed_forward = layers.FeedForward(
                intermediate_dim,
                activation,
                dropout=activation_dropout,
                seed=None if block_seed is None else block_seed + SEEDS_OF_A_BLOCK // 2,
                dtype=dtype,
                name="feed_forward",
            )
        attention_of_block = make_attention(parts, index, block_seed, dtype, mixed=mixed)
        blocks.append(
            layers.TransformerBlock(
                attention_of_block,
                feed_forward,
                **arguments,
                epsilon=layer_norm_epsilon,
                seed=block_seed,
                dtype=dtype,
                name=f"block_{index}",
            )
        )
    return blocks
