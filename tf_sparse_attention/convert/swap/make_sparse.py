"""The recommended sparse attention for a pretrained decoder, in one call."""

import math
from collections.abc import Callable

import keras

from tf_sparse_attention import checks
from tf_sparse_attention.convert.swap.dense_attention import arguments_of, sliding_window_of
from tf_sparse_attention.convert.swap.replace import replace_attention
from tf_sparse_attention.layers import LocalAttention, SparseAttention
from tf_sparse_attention.layers.attention.attention_layer import AttentionLayer
from tf_sparse_attention.layers.parts.cache_tensors import bytes_of, cache_tensors, num_bytes
from tf_sparse_attention.patterns import First, Pattern, RetrievedClusters, Window

NUM_SINKS, CLUSTER_SIZE, SEGMENT = 4, 8, 512
MIN_KEYS = 32
REPORTED_LENGTH = 8192  # tokens, for models that do not state their context length


def recommended_pattern(keys: int, **options: bool) -> Pattern:
    """Return the pattern of `make_sparse`; `options` are further arguments of `RetrievedClusters`."""
    window, num_clusters = _sizes(keys)
    return Window(window) | First(NUM_SINKS) | RetrievedClusters(num_clusters, CLUSTER_SIZE, SEGMENT, **options)


def _sizes(keys):
    """Return the window, and the number of clusters per query."""
    checks.check_count("keys", keys, MIN_KEYS)
    return keys // 8, (keys - keys // 8 - NUM_SINKS) // CLUSTER_SIZE


def make_sparse(
    model: keras.Model, keys: int = 512, causal: bool = False, print_fn: Callable[[str], object] | None = print
) -> keras.Model:
    """Return a copy of a pretrained decoder in which a token reads at most `keys` keys. No training is needed.

    Each attention layer gets the pattern `Window(keys // 8) | First(4) | RetrievedClusters(n)`: the last tokens, the
    first tokens, and the clusters of 8 keys that fit each query best. All other clusters are estimated by their means.
    The first 7/8 of `keys` tokens have the results of the dense model. Layers that have a sliding window keep it, and
    cache only the window. `replace_attention` takes any other pattern.

    Args:
        model: a built decoder that `replace_attention` supports, such as a `keras_hub.models.CausalLM`. It is not
            changed.
        keys: number of keys that a query reads, at least 32. Default: 512.
        causal: see `replace_attention`. Default: False.
        print_fn: function that receives the report: the patterns, the keys that a query reads, the KV cache for the
            context length of the model, and the attention that stays dense. None for no report. Default: `print`.

    Returns:
        A new model with the same weights, not compiled.

    Raises:
        ValueError: if `keys` is less than 32, if the attention is not causal, and as for `replace_attention`.

    Example:
        >>> model = from_gguf("SmolLM2-135M-Instruct.Q4_1.gguf")
        >>> sparse = make_sparse(model, keys=512)
    """
    pattern = recommended_pattern(keys)
    clustered, windowed, lines = list[AttentionLayer](), list[AttentionLayer](), list[str]()

    def make_layer(attention):
        own = sliding_window_of(attention)
        if own is not None:
            windowed.append(LocalAttention(**arguments_of(attention, window=own)))
            return windowed[-1]
        clustered.append(SparseAttention(**arguments_of(attention), pattern=pattern))
        return clustered[-1]

    sparse = replace_attention(model, make_layer, causal, print_fn=lines.append)
    if print_fn is None:
        return sparse
    window, num_clusters = _sizes(keys)
    name = f"Window({window}) | First({NUM_SINKS}) | RetrievedClusters({num_clusters})"
    report = [f"{len(clustered)} layers: {name}"] if clustered else []
    if windowed:
        report.append(f"{len(windowed)} layers keep their windows: LocalAttention")
    length = getattr(getattr(model, "preprocessor", None), "sequence_length", None) or REPORTED_LENGTH
    report.append(_cost(clustered, windowed, length, keys))
    print_fn("\n".join(report + [line for line in "\n".join(lines).split("\n") if not line.startswith("replaced")]))
    return sparse


def _cost(clustered, windowed, length, keys):
    """Return a sentence on what a query reads, and on the size of the cache."""
    layers, means = clustered + windowed, length // SEGMENT * SEGMENT // CLUSTER_SIZE if clustered else 0
    cache = sum(num_bytes(cache_tensors(layer, 1, length)) for layer in layers)
    sizes = [(layer.num_key_heads, layer.key_dim + layer.value_dim, bytes_of(layer.compute_dtype)) for layer in layers]
    return (
        f"Of {length:,} tokens, a query reads at most {min(keys, length):,} keys, and the means of {means:,} clusters. "
        f"KV cache: {cache / 2**20:,.1f} MiB, dense {sum(map(math.prod, sizes)) * length / 2**20:,.1f} MiB."
    )
