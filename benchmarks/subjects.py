"""Subjects of the benchmark: attention cores and whole layers, sparse and dense, on equal inputs.

A core is attention of given heads, see `benchmarks.cores`. A layer includes its projections.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from benchmarks.cores import BLOCK, CORES, KEY_HEADS, NUM_CLUSTERS, NUM_SUMMARY, SHARED, SLOTTED, STRIDE, TOP_K, WIDTH
from benchmarks.worker import DENSE
from tf_sparse_attention import layers
from tf_sparse_attention.layers.transformer_block import remat_call
from tf_sparse_attention.ops import kmeans


class Sizes(NamedTuple):
    """Sizes of the causal problem. `span` is the window and cluster size; the number of clusters is T / span."""

    length: int
    num_heads: int = 8
    head_dim: int = 64
    span: int = 256
    batch_size: int = 1

    @property
    def num_clusters(self):
        return max(self.length // self.span, 1)

    @property
    def heads(self):
        return self.batch_size, self.num_heads, self.length, self.head_dim


class Subject(NamedTuple):
    """Function to measure.

    Attributes:
        function: function of the arguments that returns a pair: the output, and a scalar to add to the loss.
        arguments: NumPy arrays, or lists of NumPy arrays.
        num_differentiated: number of leading arguments with gradients.
        variables: Keras variables of the function with gradients.
    """

    function: Callable
    arguments: tuple
    num_differentiated: int
    variables: Any = ()


def one_head_at_a_time(core):
    """Return `core` computed one head at a time and rematerialized, with the intermediate memory of one head.

    Rematerialization of the whole core would not save memory, because its backward pass holds all intermediates.
    Separate calls per head would not either, because compilers may run them in parallel; a loop prevents this.
    """

    def run(query, key, value, extras, span):
        def one(parts):
            heads, own = parts[:3], parts[3:]
            return core(*(x[:, None] for x in heads), [x[None] for x in own], span)[:, 0]

        heads = [ops.transpose(x, (1, 0, 2, 3)) for x in (query, key, value)]  # (N, B, T, H)
        output = ops.map(keras.remat(one), (*heads, *(ops.convert_to_tensor(x) for x in extras)))
        return ops.transpose(output, (1, 0, 2, 3))

    return run


def core_subject(name, sizes, remat=False, seed=0):
    """Return the `Subject` of an attention core.

    Args:
        name: one of `CORES`.
        sizes: a `Sizes`.
        remat: whether to compute one head at a time, with rematerialization in the backward pass.
        seed: seed of the inputs, which are standard normal.
    """
    query, key, value = heads_of(sizes, seed)
    if name == DENSE:
        query, key, value = (np.swapaxes(x, 1, 2).copy() for x in (query, key, value))
    key, value = (x[:, : KEY_HEADS.get(name)] for x in (key, value))
    core = one_head_at_a_time(CORES[name]) if remat else CORES[name]
    extras = extras_of(name, sizes, seed)

    if name in SHARED:  # keys are the queries, so there are only two inputs

        def function(query, value):
            return core(query, query, value, extras, sizes.span), 0.0

        return Subject(function, (query, value), 2)
    if name in SLOTTED:  # persistent vectors have gradients

        def function(query, key, value, *extras):
            return core(query, key, value, extras, sizes.span), 0.0

        return Subject(function, (query, key, value, *extras), 3 + len(extras))

    def function(query, key, value):
        return core(query, key, value, extras, sizes.span), 0.0

    return Subject(function, (query, key, value), 3)


def heads_of(sizes, seed=0):
    """Return queries, keys and values, standard normal float32 (B, N, T, H)."""
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(sizes.heads, dtype="float32") for _ in range(3)]


def extras_of(name, sizes, seed=0):
    """Return additional arrays of a core, float32 (N, ..): centroids, hash directions or persistent vectors."""
    draw = np.random.default_rng([seed, 1])
    if name in SLOTTED:
        shape = sizes.num_heads, SLOTTED[name], sizes.head_dim
        return [draw.standard_normal(shape, dtype="float32") for _ in range(2)]
    if name == "lsh":
        shape = sizes.num_heads, sizes.head_dim, max(sizes.num_clusters // 2, 1)
        return [draw.standard_normal(shape, dtype="float32")]
    if not name.startswith(("nearest", "successors", "top_k")):
        return []
    directions = draw.standard_normal((sizes.num_heads, sizes.num_clusters, sizes.head_dim), dtype="float32")
    return [ops.convert_to_numpy(kmeans.normalize(ops.convert_to_tensor(directions)))]


def layer_of(name, sizes, seed=0):
    """Return the attention layer with the pattern of a core."""
    heads = {"num_heads": sizes.num_heads, "key_dim": sizes.head_dim, "seed": seed}
    clusters = {"num_clusters": sizes.num_clusters, "cluster_size": sizes.span}
    if name in KEY_HEADS:
        heads, name = {**heads, "num_key_value_heads": KEY_HEADS[name]}, name.partition(",")[0]
    if name == "local":
        return layers.LocalAttention(window=sizes.span, **heads)
    if name == "image":
        return layers.LocalAttention2D(width=WIDTH, block_shape=BLOCK, **heads)
    if name == "lsh":
        buckets = 2 * max(sizes.num_clusters // 2, 1)
        return layers.LSHAttention(num_buckets=buckets, bucket_size=sizes.span, **heads)
    if name == "nearest":
        return layers.RoutingAttention(selection="nearest", **clusters, **heads)
    if name == "nearest, separate keys":
        return layers.RoutingAttention(selection="nearest", share_qk=False, **clusters, **heads)
    if name == "successors":
        return layers.RoutingAttention(use_successor_values=True, **clusters, **heads)
    if name == "top_k":
        return layers.RoutingAttention(selection="top_k", **clusters, **heads)
    if name == "selected":
        return layers.BlockSelectedAttention(**heads)
    if name == "native":
        return layers.NativeSparseAttention(**heads)
    if name == "native, few blocks":
        return layers.NativeSparseAttention(block_size=128, num_blocks=3, window=sizes.span, **heads)
    if name == "strided":
        return layers.StridedAttention(stride=STRIDE, **heads)
    if name == "fixed":
        return layers.FixedAttention(block_size=STRIDE, num_summary=NUM_SUMMARY, **heads)
    if name == "all-attention":
        return layers.AllAttention(num_persistent=SLOTTED[name], window=sizes.span, **heads)
    if name == "clustered":
        return layers.ClusteredAttention(num_clusters=NUM_CLUSTERS, **heads)
    if name == "improved clustered":
        return layers.ClusteredAttention(num_clusters=NUM_CLUSTERS, top_k=TOP_K, **heads)
    return keras.layers.MultiHeadAttention(**heads)


class CausalLayer(keras.layers.Layer):
    """Attention layer called as in training of a causal model, optionally rematerialized."""

    def __init__(self, attention, remat, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.remat = attention, remat

    def build(self, input_shape):
        shapes = [input_shape] * 2 if isinstance(self.attention, keras.layers.MultiHeadAttention) else [input_shape]
        self.attention.build(*shapes)

    def call(self, inputs, training=None):
        causal = not isinstance(self.attention, layers.ClusteredAttention)  # it cannot be causal
        arguments = {"training": training, "use_causal_mask": causal}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*selection='top_k' under a causal mask")
            if isinstance(self.attention, keras.layers.MultiHeadAttention):
                return self.attention(inputs, inputs, **arguments)
            call = remat_call if self.remat else type(self.attention).__call__
            return call(self.attention, inputs, **arguments)


def layer_subject(name, sizes, remat=False, seed=0):
    """Return the `Subject` of a whole layer in training, including projections and centroid updates.

    Args:
        name: one of `CORES` or `attention.LAYER_CASES`.
        sizes: a `Sizes`; the width of the input is num_heads * head_dim.
        remat: whether to rematerialize the layer as `TransformerBlock(remat=True)` does.
        seed: seed of inputs and weights.
    """
    keras.utils.set_random_seed(seed)
    layer = CausalLayer(layer_of(name, sizes, seed), remat)
    width = sizes.num_heads * sizes.head_dim
    inputs = np.random.default_rng(seed).standard_normal((1, sizes.length, width), dtype="float32")
    layer.build(inputs.shape)
    if keras.backend.backend() == "jax":
        return _stateless(layer, inputs)

    def function(inputs):
        output = layer(inputs, training=True)
        return output, sum(layer.losses, 0.0)

    return Subject(function, (inputs,), 1, layer.trainable_variables)


def _stateless(layer, inputs):
    def function(inputs, trainable, state):
        output, _, losses = layer.stateless_call(trainable, state, inputs, training=True, return_losses=True)
        return output, sum(losses, 0.0)

    variables = [[np.asarray(v) for v in kind] for kind in (layer.trainable_variables, layer.non_trainable_variables)]
    return Subject(function, (inputs, *variables), 2)
