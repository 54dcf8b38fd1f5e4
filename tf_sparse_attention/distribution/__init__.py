"""Models and sequences over several devices."""

from tf_sparse_attention.distribution.layouts import layout_map
from tf_sparse_attention.distribution.model_parallel import ModelParallel

__all__ = ["ModelParallel", "layout_map"]
__dir__ = __all__.copy  # without the modules inside
