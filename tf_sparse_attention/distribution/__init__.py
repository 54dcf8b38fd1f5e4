"""Model and sequence parallelism on JAX."""

from tf_sparse_attention.distribution.model_parallel import ModelParallel, layout_map
from tf_sparse_attention.distribution.sharded_window import sharded_window_attention

__all__ = ["ModelParallel", "layout_map", "sharded_window_attention"]
__dir__ = __all__.copy  # without submodules
