"""Integer ids of tokens and documents, and values of tensors."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.checks import check_dense
from tf_sparse_attention.types import Tensor


def as_integers(name: str, ids: Tensor) -> Tensor:
    """Convert ids to integers, because a `keras.Input` without a dtype makes them floats.

    Raises:
        ValueError: for ragged tensors, for half precision, which merges integers above 256, and for values with
            fractions.
    """
    check_dense(name, ids)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return ids
    known = values_of(ids)
    has_fractions = known is not None and (known != np.floor(known)).any()
    if dtype in ("float16", "bfloat16", "bool") or has_fractions:
        raise ValueError(
            f"`{name}` must be integers; cast them by `astype('int32')`, and give their `keras.Input` a dtype. "
            f"Received: {dtype}{' with fractions' if has_fractions else ''}."
        )
    return ops.cast(ids, "int32")


def values_of(x: Tensor) -> np.ndarray | None:
    """Return the values of a tensor, or None inside of a compiled program."""
    try:
        return np.asarray(x)  # `ops.convert_to_numpy` copies and warns
    except Exception:  # each backend raises another class
        return None
