"""Ids of tokens and documents as integers, and the numbers of tensors that have some."""

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.checks import check_dense
from tf_sparse_attention.types import Tensor


def as_integers(name: str, ids: Tensor) -> Tensor:
    """Return ids as integers, also those that came as floats, as a `keras.Input` without a dtype gives them.

    Raises:
        ValueError: for half precision, which merges neighbouring numbers from 257 on, and for fractions where they can
            be seen; for ragged tensors.
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
    """Return the numbers of a tensor, or None inside of a program, which has none yet."""
    try:
        return np.asarray(x)  # not Keras's way, which copies them and warns
    except Exception:  # of a class of its own on each backend
        return None
