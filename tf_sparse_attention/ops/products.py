"""Matrix products whose leading axes differ, and those of attention.

TensorFlow 2.21 on CPUs writes outside its memory when `matmul` broadcasts leading axes (oneDNN, fixed in later
releases). So `ops.matmul` is for operands of equal leading axes here, and everything else goes through this file.

Rows of attention, (..., t, X), are queries beside keys (..., s, X), or with one axis more, (..., g, t, X), those of g
heads that share keys.
"""

from collections.abc import Callable

from keras import ops

from tf_sparse_attention.ops.blocks import are_known, shape
from tf_sparse_attention.types import Tensor


def matmul_last_axis(x: Tensor, matrix: Tensor) -> Tensor:
    """Returns the product of the last axis with a matrix: (..., H) and (H, R) to (..., R)."""
    sizes = shape(x)
    product = ops.matmul(ops.reshape(x, (-1, sizes[-1])), matrix)
    return ops.reshape(product, (*sizes[:-1], matrix.shape[-1]))


def products_with_keys(rows: Tensor, keys: Tensor) -> Tensor:
    """Returns q_t . k_s of rows (..., t, H) and keys (..., s, H): (..., t, s)."""
    return _by_rows(_of_one if rows.shape[-2] == 1 else _of_many, rows, keys)


def sum_of_values(weights: Tensor, values: Tensor) -> Tensor:
    """Returns the sum over s of p_ts v_s, of weights (..., t, s) and values (..., s, Hv): (..., t, Hv)."""
    return _by_rows(ops.matmul, weights, values)


def side_by_side(rows: Tensor, keys: Tensor) -> Tensor:
    """Returns rows that belong to the same keys on one axis, (..., g, t, X) to (..., g t, X)."""
    if len(rows.shape) == len(keys.shape):
        return rows
    *lead, heads, number, size = shape(rows)
    return ops.reshape(rows, (*lead, heads * number, size))


def _by_rows(function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, keys: Tensor) -> Tensor:
    """Returns a function of (..., t, X) and of the keys for rows that may be of several heads."""
    result = function(side_by_side(rows, keys), keys)
    if len(rows.shape) == len(keys.shape):
        return result
    return ops.reshape(result, (*shape(rows)[:-1], shape(result)[-1]))


def _of_many(rows, keys):
    number, size = shape(rows)[-2:]
    if are_known(number, size) and number <= size:
        # A `matmul` with keys whose axes are swapped copies the gradient of the keys, this that of the products, which
        # here are no more.
        return ops.einsum("...th,...sh->...ts", rows, keys)
    return ops.matmul(rows, ops.swapaxes(keys, -1, -2))


def _of_one(rows, keys):
    # Of one query a head, as in decoding, the transposes move nearly nothing; one of the keys would copy a whole cache.
    return ops.swapaxes(ops.matmul(keys, ops.swapaxes(rows, -1, -2)), -1, -2)
