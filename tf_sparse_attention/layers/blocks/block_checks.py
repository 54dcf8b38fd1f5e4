"""Checks of the sublayers of a block."""

from typing import Any, TypeAlias

import keras

from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.attention.routing_attention import RoutingAttention
from tf_sparse_attention.layers.attention.routing_checks import OF_ALL_TOKENS

Attention: TypeAlias = AttentionLayer | MixedAttention


def check_sublayers(attention: Any, feed_forward: Any, cross_attention: Any) -> None:
    """Raises a `ValueError` unless these can be the sublayers of a block."""
    kinds = (AttentionLayer, MixedAttention)
    if not isinstance(attention, kinds):
        raise ValueError(f"`attention` must be an attention layer of this library. Received: attention={attention!r}.")
    if feed_forward is not None and not isinstance(feed_forward, keras.layers.Layer):
        raise ValueError(f"`feed_forward` must be a Keras layer or None. Received: feed_forward={feed_forward!r}.")
    if cross_attention is not None and (
        not isinstance(cross_attention, kinds) or cross_attention.name == attention.name
    ):
        raise ValueError(
            "`cross_attention` must be another attention layer of this library, of another name, or None. "
            f"Received: cross_attention={cross_attention!r}, attention={attention!r}."
        )


def check_causal(attention: Attention, cross_attention: Attention | None, causal: bool) -> None:
    """Raises a `ValueError` for attentions of which one needs a causal block, or one that is not."""
    parts = parts_of(attention)
    if not causal and (alone := _causal_parts(parts)):
        raise ValueError(
            f"`causal` must be True with {alone[0]}, which is for causal self-attention alone. Received: causal=False."
        )
    never = [part for part in parts if not part.can_be_causal]
    if causal and never:
        raise ValueError(
            f"`causal` must be False with {never[0].__class__.__name__} as it is made here, which cannot hide later "
            "positions. Received: causal=True."
        )
    across = parts_of(cross_attention)
    if alone := _causal_parts(across):
        raise ValueError(
            f"`cross_attention` must be for two sequences, and {alone[0]} is for causal self-attention alone. "
            f"Received: cross_attention={cross_attention!r}."
        )
    others = [part for part in across if part.cross_cache_unsupported_reason and not _is_published(part)]
    if causal and others:
        raise ValueError(
            "`cross_attention` of a causal block must be one in which no query depends on others: "
            f"{others[0].cross_cache_unsupported_reason}. Received: cross_attention={cross_attention!r}."
        )


def parts_of(attention: Attention | None) -> list[AttentionLayer]:
    """Returns the parts of an attention, itself if it has none, or no part of None."""
    if attention is None:
        return []
    return attention.parts if isinstance(attention, MixedAttention) else [attention]


def _causal_parts(parts):
    return [name for part in parts if (name := part.causal_part)]


def _is_published(part):
    """Returns whether cross-attention chooses among all queries because the published code does."""
    if not isinstance(part, RoutingAttention) or part.share_qk:
        return False
    return part.reproduce_reference and part.selection in OF_ALL_TOKENS
