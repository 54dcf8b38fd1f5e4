"""The cache of a decoder as tensors with names, the inputs and outputs of LiteRT and ONNX files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.types import Tensor

Path = tuple[str, ...]


class CacheTensors:
    """The tensors of a nested cache by names: the keys that lead to each, joined by "_".

    Args:
        decoder: `LanguageModel` that decodes with a cache.
        batch_size: rows B.
        max_length: the most tokens of a row.
        source_length: S, tokens of a source, of a decoder with `cross_attention`. None: it has none.

    Attributes:
        inputs: list of `tf.TensorSpec`, in the order of the cache.

    Raises:
        ValueError: for layers whose names are the same when joined, and for a cache that does not start from zeros.
    """

    def __init__(
        self, decoder: LanguageModel, batch_size: int, max_length: int, source_length: int | None = None
    ) -> None:
        self._decoder, self._sizes = decoder, (batch_size, max_length)
        empty = self._empty(_blank_source(decoder, batch_size, source_length))
        paths = list(_paths(empty))
        names = [re.sub(r"\W", "_", "_".join(path)) for path in paths]
        if len({"token_ids", "index", *names}) != len(names) + 2:
            raise ValueError(f"`model` must have layers whose names differ when joined by '_'. Received: {names}.")
        self._paths = dict(zip(names, paths, strict=True))
        blocks = [block for block in decoder.backbone.blocks if block.cross_attention is not None]
        across = {(block.name, block.cross_attention.name) for block in blocks}
        self._of_source = {name for name, path in self._paths.items() if path[:2] in across}
        self.inputs = []
        for name, path in self._paths.items():
            start = _at(empty, path)
            if name not in self._of_source and np.any(start):
                raise ValueError(f"`model` must start from zeros. Received: a cache with others in {name}.")
            self.inputs.append(tf.TensorSpec(start.shape, start.dtype, name))

    def of_source(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors by name that a decoder keeps of an encoder's outputs; decoding does not change them."""
        cache = self._empty(encoded)
        return {name: _at(cache, path) for name, path in self._paths.items() if name in self._of_source}

    def of_tokens(self, cache: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the tensors by name of a nested cache that change from token to token."""
        return {name: _at(cache, path) for name, path in self._paths.items() if name not in self._of_source}

    def nested(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Returns the nested cache of tensors in the order of `inputs`."""
        cache: dict[str, Any] = {}
        for path, tensor in zip(self._paths.values(), tensors, strict=True):
            inner = cache
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = tensor
        return cache

    def _empty(self, encoded):
        return self._decoder.init_cache(*self._sizes, **encoded)


def _blank_source(decoder, batch_size, length):
    """Returns outputs of an encoder of the right shapes."""
    if length is None:
        return {}
    sequence = tf.zeros((batch_size, length, decoder.backbone.hidden_dim))
    return {"encoder_sequence": sequence, "encoder_padding_mask": tf.ones((batch_size, length), tf.bool)}


def _paths(cache: Mapping[str, Any], before: Path = ()) -> Iterator[Path]:
    """Iterates over the paths of the tensors of a nested cache, tuples of names."""
    for name, inner in cache.items():
        if isinstance(inner, dict):
            yield from _paths(inner, (*before, name))
        else:
            yield (*before, name)


def _at(cache, path):
    for name in path:
        cache = cache[name]
    return cache
