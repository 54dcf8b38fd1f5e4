"""Attention that a reader can work out: one head, vectors of size one, queries of zero."""

import numpy as np
from keras import ops

VALUES = [1, 2, 4, 8, 16, 32]


def column(x):
    """Returns numbers as one head of one row with vectors of size 1: (1, 1, T, 1)."""
    return np.array(x, "float32").reshape(1, 1, -1, 1)


def means(attention, values=VALUES, num_queries=None):
    """Returns what zero queries get, the plain mean of the values they see, 0 if they see none.

    Args:
        attention: function of query, key and value to an `Attended`.
        values: S numbers; powers of two tell which of them a mean is of.
        num_queries: T, or None for S.
    """
    queries, keys = column([0] * (num_queries or len(values))), column([0] * len(values))
    return ops.convert_to_numpy(attention(queries, keys, column(values)).output)[0, 0, :, 0].tolist()
