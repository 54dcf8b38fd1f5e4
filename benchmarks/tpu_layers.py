"""Attention layers that `benchmarks.tpu_programs` and `benchmarks.tpu_roofline` compile for TPUs.

Import this module only on the JAX backend. Every program is a pair (function, arguments).
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from tf_sparse_attention import layers

LENGTH = 2048
HEADS = {"num_heads": 8, "key_dim": 64, "dtype": "bfloat16", "seed": 0}
ROUTED = {"num_clusters": 8, "cluster_size": 256, **HEADS}


class Layer(NamedTuple):
    """Layer to compile.

    Attributes:
        make: function without arguments that returns the layer.
        causal: whether later positions are masked.
        key_share: size of keys and values relative to those with as many heads as queries; 0.5 if queries are the keys.
    """

    make: Callable
    causal: bool = True
    key_share: float = 1.0


def layer_program(layer, backward, length=LENGTH, dtype="float32"):
    """Return (function, arguments) of an attention layer in training, on (1, length, 512) in bfloat16.

    Args:
        layer: a `Layer`.
        backward: whether to also compute gradients of the input and all weights.
        length: T.
        dtype: dtype of the program's input.
    """
    layer, causal, _ = layer
    layer = layer()
    layer.build((1, length, 512))
    x = ops.zeros((1, length, 512), dtype)
    state = [np.asarray(v) for v in layer.non_trainable_variables]

    def forward(x, trainable, state):
        # Suppress the warning about "top_k" with a causal mask, which is intended here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output, state, losses = layer.stateless_call(
                trainable, state, ops.cast(x, "bfloat16"), training=True, use_causal_mask=causal, return_losses=True
            )
        return ops.sum(ops.square(ops.cast(output, "float32"))) + sum(losses, 0.0), (output, state)

    return gradient_of(forward, (0, 1)) if backward else forward, (x, values_of(layer.trainable_variables), state)


def gradient_of(function, arguments):
    """Return a function with the result of `function`, a pair (number, other results), and gradients of `arguments`."""
    import jax

    return jax.value_and_grad(function, argnums=arguments, has_aux=True)


def values_of(variables):
    """Return the values of variables in a list."""
    return [ops.convert_to_tensor(variable) for variable in variables]


def _local():
    return layers.LocalAttention(window=256, **HEADS)


def _nearest():
    return layers.RoutingAttention(selection="nearest", **ROUTED)


def _successors():
    return layers.RoutingAttention(use_successor_values=True, **ROUTED)


def _successors_separate():
    return layers.RoutingAttention(use_successor_values=True, share_qk=False, **ROUTED)


def _separate():
    return layers.RoutingAttention(selection="nearest", share_qk=False, **ROUTED)


def _top_k():
    return layers.RoutingAttention(selection="top_k", **ROUTED)


def _mixed():
    parts = [
        layers.LocalAttention(window=256, **{**HEADS, "num_heads": 6}),
        layers.RoutingAttention(selection="nearest", **{**ROUTED, "num_heads": 2}),
    ]
    return layers.MixedAttention(parts, dtype="bfloat16")


def _strided():
    return layers.StridedAttention(stride=64, heads="merged", **HEADS)


def _fixed():
    return layers.FixedAttention(block_size=64, num_summary=8, heads="merged", **HEADS)


def _all():
    return layers.AllAttention(num_persistent=512, window=256, adaptive_span=True, **HEADS)


def _image():
    return layers.LocalAttention2D(width=64, block_shape=(8, 8), **HEADS)


def _global():
    return layers.GlobalLocalAttention(window=256, num_first_global=1, num_global=64, **HEADS)


def _hashing():
    return layers.LSHAttention(num_buckets=16, bucket_size=128, num_rounds=2, **HEADS)


def _clustered(top_k=None):
    return layers.ClusteredAttention(num_clusters=64, top_k=top_k, **HEADS)


def _improved():
    return _clustered(top_k=32)


def _top_keys():
    return layers.RoutingAttention(selection="top_keys", share_qk=False, **ROUTED)


def _grouped():
    return layers.LocalAttention(
        window=256, position="rotary", num_key_value_heads=2, use_sink=True, logit_soft_cap=30.0, **HEADS
    )


def _selected():
    return layers.BlockSelectedAttention(block_size=128, num_blocks=3, **HEADS)


def _native():
    return layers.NativeSparseAttention(
        block_size=64, num_blocks=4, window=256, num_key_value_heads=2, position="rotary", **HEADS
    )


LAYERS = {
    "LocalAttention": Layer(_local),
    "RoutingAttention nearest": Layer(_nearest, key_share=0.5),
    "RoutingAttention nearest, separate keys": Layer(_separate),
    "RoutingAttention successors": Layer(_successors, key_share=0.5),
    "RoutingAttention successors, separate keys": Layer(_successors_separate),
    "RoutingAttention top_k": Layer(_top_k, key_share=0.5),
    "RoutingAttention top_keys": Layer(_top_keys, causal=False),
    "MixedAttention local and nearest": Layer(_mixed),
    "StridedAttention": Layer(_strided),
    "FixedAttention": Layer(_fixed),
    "AllAttention with spans": Layer(_all),
    "LocalAttention2D": Layer(_image),
    "GlobalLocalAttention": Layer(_global, causal=False),
    "LSHAttention, two rounds": Layer(_hashing, key_share=0.5),
    "ClusteredAttention": Layer(_clustered, causal=False),
    "ClusteredAttention, improved": Layer(_improved, causal=False),
    "LocalAttention, grouped heads": Layer(_grouped, key_share=0.25),
    "BlockSelectedAttention": Layer(_selected),
    "NativeSparseAttention": Layer(_native, key_share=0.25),
}
