"""Sparse attention for long sequences in Keras 3."""

from tf_sparse_attention import analysis, generation, layers, models, ops
from tf_sparse_attention.version import __version__

__all__ = ["__version__", "analysis", "generation", "layers", "models", "ops"]
