"""Bytes per number of a dtype."""

from typing import Any

import keras

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4}


def bytes_of(dtype: Any) -> int:
    """Return the bytes per number of a dtype."""
    return BYTES[keras.backend.standardize_dtype(dtype)]
