"""Embeddings of tokens and positions, and adaptive vocabularies."""

from tf_sparse_attention.layers.embeddings.adaptive_embedding import AdaptiveEmbedding
from tf_sparse_attention.layers.embeddings.adaptive_softmax import AdaptiveSoftmax
from tf_sparse_attention.layers.embeddings.grid_embedding import GridEmbedding
from tf_sparse_attention.layers.embeddings.sinusoidal_embedding import SinusoidalEmbedding

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "GridEmbedding",
    "SinusoidalEmbedding",
]
