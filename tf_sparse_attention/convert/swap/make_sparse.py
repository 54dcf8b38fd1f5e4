"""The recommended sparse attention for a pretrained decoder, in one call."""

import collections
import math
from collections.abc import Callable
from typing import Any

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.convert.swap.dense_attention import arguments_of, sliding_window_of
from tf_sparse_attention.convert.swap.replace import Replacement
from tf_sparse_attention.layers import LocalAttention, SparseAttention
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.parts.cache_tensors import bytes_of, cache_tensors, num_bytes
from tf_sparse_attention.patterns import First, Pattern, RetrievedClusters, Window

NUM_SINKS, CLUSTER_SIZE, SEGMENT = 4, 8, 512
MIN_KEYS = 64
REPORTED_LENGTH = 8192  # tokens, for models that do not state their context length


def recommended_pattern(keys: int, **options: Any) -> Pattern:
    """Return the pattern of `make_sparse`; `options` are further arguments of `RetrievedClusters`."""
    window, num_clusters = _sizes(keys)
    return Window(window) | First(NUM_SINKS) | RetrievedClusters(num_clusters, CLUSTER_SIZE, SEGMENT, **options)


def _sizes(keys):
    """Return the window, and the number of clusters per query."""
    checks.check_count("keys", keys, MIN_KEYS)
    return keys // 8, (keys - keys // 8 - NUM_SINKS) // CLUSTER_SIZE


def sparse_layer(attention: keras.layers.Layer, pattern: Pattern) -> AttentionLayer:
    """Return a layer with a pattern that replaces a dense attention, or with the window that the attention has."""
    window = sliding_window_of(attention)
    if window is not None:
        return LocalAttention(**arguments_of(attention, window=window))
    return SparseAttention(**arguments_of(attention), pattern=pattern)


def make_sparse(
    model: keras.Model, keys: int = 512, causal: bool = False, print_fn: Callable[[str], object] | None = print
) -> keras.Model:
    """Return a copy of a pretrained decoder in which a token reads at most `keys` keys. No training is needed.

    Each attention layer gets the pattern `Window(keys // 8) | First(4) | RetrievedClusters(n)`: the last tokens, the
    first tokens, and the clusters of 8 keys that fit each query best. All other clusters are estimated by their means,
    which a token reads too. About the first 7/8 of `keys` tokens have the results of the dense model. Layers that have
    a sliding window keep it for any `keys`, and cache only the window. Use `replace_attention` for other patterns.

    Args:
        model: a built decoder that `replace_attention` supports, such as a `keras_hub.models.CausalLM`. It is not
            changed.
        keys: number of keys that a query reads, at least 64. Default: 512.
        causal: see `replace_attention`. Default: False.
        print_fn: function that receives the report: the patterns, the keys that a query reads, the KV cache of
            `model.preprocessor.sequence_length` tokens (8,192 without a preprocessor), remarks on differences, and the
            attention that stays dense. None for no report. Default: `print`.

    Returns:
        A new model with the same weights, not compiled.

    Raises:
        ValueError: if `keys` is less than 64, if the attention is not causal, and as for `replace_attention`.

    Example:
        >>> model = from_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
        >>> sparse = make_sparse(model, keys=512)
    """
    pattern = recommended_pattern(keys)
    replacement = Replacement(lambda attention: sparse_layer(attention, pattern), causal)
    sparse = replacement.apply(model)
    if print_fn is not None:
        length = getattr(getattr(model, "preprocessor", None), "sequence_length", None) or REPORTED_LENGTH
        remarks = collections.Counter(each for _, _, *several in replacement.replaced.values() for each in several)
        lines = [
            *_summary(list(replacement.new_layers.values()), length, keys),
            *(f"{count} layers: {remark}" for remark, count in remarks.items()),
            *replacement.report_skipped(),
        ]
        print_fn("\n".join(lines))
    return sparse


def _summary(layers, length, keys):
    """Yield sentences on what a query reads, and on the size of the cache."""
    windowed = [layer for layer in layers if isinstance(layer, LocalAttention)]
    num_clustered = len(layers) - len(windowed)
    if num_clustered:
        window, num_clusters = _sizes(keys)
        means = length // SEGMENT * SEGMENT // CLUSTER_SIZE
        yield (
            f"{num_clustered} layers: Window({window}) | First({NUM_SINKS}) | RetrievedClusters({num_clusters}). Of "
            f"{length:,} tokens, a query reads at most {min(keys, length):,} keys, and the means of {means:,} clusters."
        )
    if windowed:
        windows = ", ".join(sorted({f"{layer.window:,}" for layer in windowed}))
        yield f"{len(windowed)} layers: their own window of {windows} tokens, which `keys` does not change."
    cache = sum(num_bytes(cache_tensors(layer, 1, length)) for layer in layers)
    sizes = [(layer.num_key_heads, layer.key_dim + layer.value_dim, bytes_of(layer.compute_dtype)) for layer in layers]
    dense = sum(map(math.prod, sizes)) * length
    yield f"KV cache of {length:,} tokens: {cache / 2**20:,.1f} MiB, dense {dense / 2**20:,.1f} MiB."
