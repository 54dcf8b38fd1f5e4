"""Models written for others to run, without this library."""

from tf_sparse_attention.export.saved_model import export_saved_model

__all__ = ["export_saved_model"]
