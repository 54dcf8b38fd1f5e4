"""The weights of what `HeadSettings` switches on: a gate, norms of queries and keys, sinks."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers.parts import projections
from tf_sparse_attention.layers.parts.seeds_and_dtypes import state_dtype
from tf_sparse_attention.types import Shape, Tensor


def make_gate(
    attention: keras.layers.Layer, query_shape: Shape, objects: dict[str, Any]
) -> keras.layers.EinsumDense | None:
    """Returns the built projection of the gate of an attention layer, or None where it has none."""
    if not attention.head_settings.use_gate:
        return None
    sizes = attention.num_heads, attention.value_dim
    return projections.input_projection(attention, "gate", query_shape, *sizes, attention.use_bias, objects)


def gated(gate: keras.layers.Layer | None, query: Tensor, heads: Tensor) -> Tensor:
    """Returns attended heads (B, N, T, Hv) of a query (B, T, D), each channel times that of its gate."""
    return heads if gate is None else heads * ops.sigmoid(projections.heads_of(gate, query))


def make_norms(attention: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Returns the built norms of an attention layer by the names of their projections, none where it has none."""
    norms = {}
    settings = attention.head_settings
    for name in ("query", "key")[: 1 if attention.share_qk else 2] if settings.use_query_key_norm else ():
        norms[name] = keras.layers.RMSNormalization(
            epsilon=settings.query_key_norm_epsilon, name=f"{name}_norm", dtype=attention.dtype_policy
        )
        norms[name].build((None, None, None, attention.key_dim))
    return norms


def make_sinks(attention: keras.layers.Layer) -> keras.Variable | None:
    """Returns the logits of the sinks of an attention layer, a weight float (N,), or None where it has none."""
    if not attention.head_settings.use_sink:
        return None
    sizes, dtype = (attention.num_heads,), state_dtype(attention)
    return attention.add_weight(name="sinks", shape=sizes, dtype=dtype, initializer="zeros", autocast=False)
