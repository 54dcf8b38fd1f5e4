"""Embeddings of tokens and positions, and adaptive vocabularies."""

from tf_sparse_attention.layers.embeddings.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from tf_sparse_attention.layers.embeddings.position_embeddings import GridEmbedding, SinusoidalEmbedding

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "GridEmbedding",
    "SinusoidalEmbedding",
]
