"""Keras layers of sparse attention."""

from tf_sparse_attention.layers.adaptive_embedding import AdaptiveEmbedding
from tf_sparse_attention.layers.adaptive_softmax import AdaptiveSoftmax
from tf_sparse_attention.layers.all_attention import AllAttention
from tf_sparse_attention.layers.attention_layer import AttentionLayer
from tf_sparse_attention.layers.clustered_attention import ClusteredAttention
from tf_sparse_attention.layers.feed_forward import FeedForward
from tf_sparse_attention.layers.fixed_attention import FixedAttention
from tf_sparse_attention.layers.global_local_attention import GlobalLocalAttention
from tf_sparse_attention.layers.grid_embedding import GridEmbedding
from tf_sparse_attention.layers.local_attention import LocalAttention
from tf_sparse_attention.layers.local_attention_2d import LocalAttention2D
from tf_sparse_attention.layers.lsh_attention import LSHAttention
from tf_sparse_attention.layers.mixed_attention import MixedAttention
from tf_sparse_attention.layers.routing_attention import RoutingAttention
from tf_sparse_attention.layers.sinusoidal_embedding import SinusoidalEmbedding
from tf_sparse_attention.layers.softmax_feed_forward import SoftmaxFeedForward
from tf_sparse_attention.layers.sparse_attention import SparseAttention
from tf_sparse_attention.layers.strided_attention import StridedAttention
from tf_sparse_attention.layers.swapped_attention import SwappedAttention
from tf_sparse_attention.layers.transformer_block import TransformerBlock

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "AllAttention",
    "AttentionLayer",
    "ClusteredAttention",
    "FeedForward",
    "FixedAttention",
    "GlobalLocalAttention",
    "GridEmbedding",
    "LSHAttention",
    "LocalAttention",
    "LocalAttention2D",
    "MixedAttention",
    "RoutingAttention",
    "SinusoidalEmbedding",
    "SoftmaxFeedForward",
    "SparseAttention",
    "StridedAttention",
    "SwappedAttention",
    "TransformerBlock",
]
