"""The blocks of `Backbone` and `Encoder`."""

from tf_sparse_attention import layers
from tf_sparse_attention.models.attention_parts import make_attention, parse_attention

# First the block's own seed, then those of its attention's parts; that of its feed-forward in the middle.
SEEDS_OF_A_BLOCK = 1000


def make_blocks(
    attention,
    num_layers,
    dtype,
    num_local_layers=0,
    intermediate_dim=None,
    activation="gelu",
    activation_dropout=0.0,
    layer_norm_epsilon=1e-6,
    seed=None,
    mixed=True,
    **arguments,
):
    """Returns the blocks of a model, "block_0" and so on, not built.

    Args:
        attention: plain data of the attention, see `parse_attention`.
        num_layers: number of blocks.
        dtype: dtype policy of all their layers.
        num_local_layers: blocks whose local part takes over the heads of all parts.
        intermediate_dim: size inside the feed-forward. None: blocks have none.
        activation: of the feed-forward.
        activation_dropout: rate inside the feed-forward.
        layer_norm_epsilon: of the layer norms.
        seed: integer or None, of which each layer takes one of its own.
        mixed: whether attention of a single part is a `MixedAttention` as well.
        **arguments: further ones of `TransformerBlock`.
    """
    blocks = []
    for index, parts in enumerate(parse_attention(attention, num_layers, num_local_layers)):
        own = None if seed is None else seed + SEEDS_OF_A_BLOCK * (index + 1)
        feed_forward = None
        if intermediate_dim is not None:
            feed_forward = layers.FeedForward(
                intermediate_dim,
                activation,
                dropout=activation_dropout,
                seed=None if own is None else own + SEEDS_OF_A_BLOCK // 2,
                dtype=dtype,
                name="feed_forward",
            )
        attention_of_block = make_attention(parts, index, own, dtype, mixed=mixed)
        blocks.append(
            layers.TransformerBlock(
                attention_of_block,
                feed_forward,
                **arguments,
                epsilon=layer_norm_epsilon,
                seed=own,
                dtype=dtype,
                name=f"block_{index}",
            )
        )
    return blocks
