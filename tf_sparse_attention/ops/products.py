"""Matrix products whose leading axes differ.

TensorFlow 2.21 on CPUs writes outside its memory when `matmul` broadcasts leading axes (oneDNN, fixed in later
releases). So `ops.matmul` is for operands of equal leading axes here, and everything else goes through this file.
"""

from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Tensor


def matmul_last_axis(x: Tensor, matrix: Tensor) -> Tensor:
    """Returns the product of the last axis with a matrix: (..., H) and (H, R) to (..., R)."""
    sizes = shape(x)
    product = ops.matmul(ops.reshape(x, (-1, sizes[-1])), matrix)
    return ops.reshape(product, (*sizes[:-1], matrix.shape[-1]))
