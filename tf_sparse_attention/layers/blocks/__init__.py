"""Transformer blocks and their feed-forward and subsampling layers."""

from tf_sparse_attention.layers.blocks.feed_forward import FeedForward, SoftmaxFeedForward
from tf_sparse_attention.layers.blocks.frame_subsampling import FrameSubsampling
from tf_sparse_attention.layers.blocks.transformer_block import TransformerBlock

__all__ = [
    "FeedForward",
    "FrameSubsampling",
    "SoftmaxFeedForward",
    "TransformerBlock",
]
