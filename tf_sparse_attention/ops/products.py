"""Matrix products whose leading axes differ.

TensorFlow 2.21 on CPUs writes outside its memory when `matmul` broadcasts leading axes (oneDNN, fixed in later
releases). So `ops.matmul` is for operands of equal leading axes here, and everything else goes through this file.
"""

from keras import ops

from tf_sparse_attention.ops.blocks import shape


def times_matrix(x, matrix):
    """Returns the product of the last axis with a matrix: (..., H) and (H, R) to (..., R)."""
    sizes = shape(x)
    product = ops.matmul(ops.reshape(x, (-1, sizes[-1])), matrix)
    return ops.reshape(product, (*sizes[:-1], matrix.shape[-1]))


def scores_of_slots(query, key):
    """Returns q . k of queries (B, N, .., t, H) and slots (N, M, H) or (B, N, M, H): (B, N, .., t, M)."""
    queries, slots = _axes(query, key)
    return ops.einsum(f"{queries}H,{slots}H->{queries}M", query, key)


def sum_of_slots(weights, value):
    """Returns slots (N, M, Hv) or (B, N, M, Hv) summed by weights (B, N, .., t, M): (B, N, .., t, Hv)."""
    queries, slots = _axes(weights, value)
    return ops.einsum(f"{queries}M,{slots}H->{queries}H", weights, value)


def _axes(queries, slots):
    """Returns the letters of all axes but the last; written out, since "..." would broadcast in a `matmul`."""
    return "BNGgt"[: len(queries.shape) - 2] + "t", "BNM"[4 - len(slots.shape) :]
