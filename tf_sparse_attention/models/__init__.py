"""Models built from the layers, and the presets they are made from."""

from tf_sparse_attention.models.model import Model

__all__ = ["Model"]
