"""Models written for others to run, without this library."""

from tf_sparse_attention.export.litert import export_litert
from tf_sparse_attention.export.onnx import export_onnx
from tf_sparse_attention.export.saved_model import export_saved_model

__all__ = ["export_litert", "export_onnx", "export_saved_model"]
__dir__ = __all__.copy  # without the modules inside
