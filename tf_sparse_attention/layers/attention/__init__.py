"""Attention layers."""

from tf_sparse_attention.layers.attention.all_attention import AllAttention
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.attention.block_selected_attention import BlockSelectedAttention
from tf_sparse_attention.layers.attention.clustered_attention import ClusteredAttention
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

__all__ = [
    "AllAttention",
    "AttentionLayer",
    "BlockSelectedAttention",
    "ClusteredAttention",
    "FixedAttention",
    "GlobalLocalAttention",
    "LSHAttention",
    "LocalAttention",
    "LocalAttention2D",
    "MixedAttention",
    "NativeSparseAttention",
    "RoutingAttention",
    "SparseAttention",
    "StridedAttention",
    "SwappedAttention",
]
