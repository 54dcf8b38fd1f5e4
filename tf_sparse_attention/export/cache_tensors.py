"""KV cache of a decoder as named tensors, the inputs and outputs of LiteRT and ONNX files."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_sparse_attention.models import LanguageModel
from tf_sparse_attention.types import Tensor


class CacheTensors:
    """Tensors of a nested KV cache. The name of a tensor is its path of keys, joined by "_".

    Args:
        decoder: `LanguageModel` that decodes with a cache.
        batch_size: number of rows B.
        max_length: maximum number of tokens in a row.
        source_length: number S of source tokens, for a decoder with `cross_attention`. None (default): no source.

    Attributes:
        inputs: list of `tf.TensorSpec`, in the order of `keras.tree.flatten(cache)`.

    Raises:
        ValueError: If two tensors have the same name, or if an empty cache is not all zeros.
    """

    def __init__(
        self, decoder: LanguageModel, batch_size: int, max_length: int, source_length: int | None = None
    ) -> None:
        self._decoder, self._sizes = decoder, (batch_size, max_length)
        self._structure = self._make_cache(_blank_source(decoder, batch_size, source_length))
        pairs = keras.tree.flatten_with_path(self._structure)
        names = [re.sub(r"\W", "_", "_".join(path)) for path, _ in pairs]
        if len({"token_ids", "index", *names}) != len(names) + 2:
            raise ValueError(f"`model` must have layers whose names differ when joined by '_'. Received: {names}.")
        blocks = [block for block in decoder.backbone.blocks if block.cross_attention is not None]
        cross_layers = {(block.name, block.cross_attention.name) for block in blocks}
        self._source_names = {name for name, (path, _) in zip(names, pairs, strict=True) if path[:2] in cross_layers}
        self.inputs = [tf.TensorSpec(x.shape, x.dtype, name) for name, (_, x) in zip(names, pairs, strict=True)]
        for name, (_, start) in zip(names, pairs, strict=True):
            if name not in self._source_names and np.any(start):
                raise ValueError(f"`model` must have an initial cache of zeros. Received: other values in {name}.")

    def source_tensors(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the cross-attention tensors for encoder outputs, by name. Decoding does not change these tensors."""
        tensors = self._by_name(self._make_cache(encoded))
        return {name: tensors[name] for name in tensors if name in self._source_names}

    def token_tensors(self, cache: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors of a nested cache that decoding changes, by name."""
        tensors = self._by_name(cache)
        return {name: tensors[name] for name in tensors if name not in self._source_names}

    def nested(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """Return the nested cache for tensors in the order of `inputs`."""
        return keras.tree.pack_sequence_as(self._structure, list(tensors))

    def _by_name(self, cache):
        return dict(zip((spec.name for spec in self.inputs), keras.tree.flatten(cache), strict=True))

    def _make_cache(self, encoded):
        return self._decoder.init_cache(*self._sizes, **encoded)


def _blank_source(decoder, batch_size, length):
    """Return encoder outputs with the shapes of a source of `length` tokens, or {} if `length` is None."""
    if length is None:
        return {}
    sequence = tf.zeros((batch_size, length, decoder.backbone.hidden_dim))
    return {"encoder_sequence": sequence, "encoder_padding_mask": tf.ones((batch_size, length), tf.bool)}
