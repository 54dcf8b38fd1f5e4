"""Tensors of a KV cache and their sizes, without allocating them."""

import math
from collections.abc import Mapping
from typing import Any

import keras

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4}


def bytes_of(dtype: Any) -> int:
    """Return the bytes per number of a dtype."""
    return BYTES[keras.backend.standardize_dtype(dtype)]


def cache_tensors(layer: keras.layers.Layer, batch_size: int, max_length: int) -> list[tuple[str, keras.KerasTensor]]:
    """Return the name and the symbolic tensor of each array in the empty cache of a layer."""
    return _leaves(_EmptyCache(layer, batch_size, max_length).symbolic_call(keras.KerasTensor((1,))))


def num_bytes(tensors: list[tuple[str, keras.KerasTensor]]) -> int:
    """Return the total bytes of the result of `cache_tensors`."""
    return sum(math.prod(tensor.shape) * bytes_of(tensor.dtype) for _, tensor in tensors)


class _EmptyCache(keras.Operation):
    """Operation that creates a layer's empty cache, for a symbolic call that computes only shapes."""

    def __init__(self, layer: keras.layers.Layer, batch_size: int, max_length: int) -> None:
        super().__init__()
        self._make = lambda: layer.init_cache(batch_size, max_length)

    def call(self, x):
        return self._make()


def _leaves(cache, name=""):
    if not isinstance(cache, Mapping):
        return [(name, cache)]
    return [leaf for name, inner in cache.items() for leaf in _leaves(inner, name)]
