"""What the benchmark measures: attention cores and whole layers, ours and dense ones, on equal inputs.

A core is attention of heads that are given, in `benchmarks.cores`. A layer includes its projections.
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
from tf_sparse_attention.layers.blocks.transformer_block import remat_call
from tf_sparse_attention.ops import kmeans


class Sizes(NamedTuple):
    """The problem, causal. `span` is the window and the cluster size; clusters grow with the length."""

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
    """A function to measure.

    Attributes:
        function: takes the arguments, returns the pair of an output and a scalar to be added to the loss.
        arguments: NumPy arrays, or lists of them.
        num_differentiated: how many of the arguments, from the first on, take a gradient.
        variables: Keras variables that the function reads and that take a gradient.
    """

    function: Callable
    arguments: tuple
    num_differentiated: int
    variables: Any = ()


def one_head_at_a_time(core):
    """Return `core` computed head by head and, in the backward pass, again: the memory of one head's insides.

    A rematerialised core alone would save nothing: its backward pass holds everything at once. Nor would heads in
    parts side by side, which compilers are free to run at once; a loop is what keeps them apart.
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
        remat: whether it is computed one head at a time and again in the backward pass.
        seed: of the inputs, which are standard normal.
    """
    query, key, value = heads_of(sizes, seed)
    if name == DENSE:
        query, key, value = (np.swapaxes(x, 1, 2).copy() for x in (query, key, value))
    key, value = (x[:, : KEY_HEADS.get(name)] for x in (key, value))
    core = one_head_at_a_time(CORES[name]) if remat else CORES[name]
    extras = extras_of(name, sizes, seed)

    if name in SHARED:  # queries are the keys: there is no third input

        def function(query, value):
            return core(query, query, value, extras, sizes.span), 0.0

        return Subject(function, (query, value), 2)
    if name in SLOTTED:  # what is learned takes a gradient

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
    """Return what a core needs beside its heads, a list of float32 arrays (N, ..): centroids, axes or slots."""
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
    """An attention layer called as a causal model calls it in training, rematerialised if wanted."""

    def __init__(self, attention, remat, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.remat = attention, remat

    def build(self, input_shape):
        shapes = [input_shape] * 2 if isinstance(self.attention, keras.layers.MultiHeadAttention) else [input_shape]
        self.attention.build(*shapes)

    def call(self, inputs, training=None):
        causal = not isinstance(self.attention, layers.ClusteredAttention)  # which cannot be
        arguments = {"training": training, "use_causal_mask": causal}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*selection='top_k' under a causal mask")
            if isinstance(self.attention, keras.layers.MultiHeadAttention):
                return self.attention(inputs, inputs, **arguments)
            call = remat_call if self.remat else type(self.attention).__call__
            return call(self.attention, inputs, **arguments)


def layer_subject(name, sizes, remat=False, seed=0):
    """Return the `Subject` of a whole layer in training: projections, centroids and their update included.

    Args:
        name: one of `CORES` or of `attention.LAYER_CASES`.
        sizes: a `Sizes`; the model's width is the heads' together.
        remat: whether the layer is rematerialised as `TransformerBlock(remat=True)` does.
        seed: of inputs and weights.
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
