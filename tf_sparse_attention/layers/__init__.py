"""Keras layers of sparse attention."""

from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.feed_forward import FeedForward
from tf_sparse_attention.layers.local_attention import LocalAttention
from tf_sparse_attention.layers.mixed_attention import MixedAttention
from tf_sparse_attention.layers.routing_attention import RoutingAttention
from tf_sparse_attention.layers.transformer_block import TransformerBlock

__all__ = [
    "AttentionLayer",
    "FeedForward",
    "LocalAttention",
    "MixedAttention",
    "RoutingAttention",
    "TransformerBlock",
]
