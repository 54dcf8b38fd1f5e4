"""Keras layers for sparse attention."""

from tf_sparse_attention.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from tf_sparse_attention.layers.attention.all_attention import AllAttention
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.block_selected_attention import BlockSelectedAttention
from tf_sparse_attention.layers.attention.clustered_attention import ClusteredAttention
from tf_sparse_attention.layers.attention.dense_attention import DenseAttention
from tf_sparse_attention.layers.attention.factorized_attention import FixedAttention, StridedAttention
from tf_sparse_attention.layers.attention.global_local_attention import GlobalLocalAttention
from tf_sparse_attention.layers.attention.local_attention import LocalAttention
from tf_sparse_attention.layers.attention.local_attention_2d import LocalAttention2D
from tf_sparse_attention.layers.attention.lsh_attention import LSHAttention
from tf_sparse_attention.layers.attention.mixed_attention import MixedAttention
from tf_sparse_attention.layers.attention.native_sparse_attention import NativeSparseAttention
from tf_sparse_attention.layers.attention.routing_attention import RoutingAttention
from tf_sparse_attention.layers.attention.sparse_attention import SparseAttention
from tf_sparse_attention.layers.attention.swapped_attention import SwappedAttention
from tf_sparse_attention.layers.feed_forward import FeedForward, SoftmaxFeedForward
from tf_sparse_attention.layers.frame_subsampling import FrameSubsampling
from tf_sparse_attention.layers.position_embeddings import GridEmbedding, SinusoidalEmbedding
from tf_sparse_attention.layers.transformer_block import TransformerBlock

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "AllAttention",
    "AttentionLayer",
    "BlockSelectedAttention",
    "ClusteredAttention",
    "DenseAttention",
    "FeedForward",
    "FixedAttention",
    "FrameSubsampling",
    "GlobalLocalAttention",
    "GridEmbedding",
    "LSHAttention",
    "LocalAttention",
    "LocalAttention2D",
    "MixedAttention",
    "NativeSparseAttention",
    "RoutingAttention",
    "SinusoidalEmbedding",
    "SoftmaxFeedForward",
    "SparseAttention",
    "StridedAttention",
    "SwappedAttention",
    "TransformerBlock",
]
__dir__ = __all__.copy  # hides submodules
