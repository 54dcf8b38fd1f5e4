"""Interpreted kernels against plain operations, on the JAX backend."""

import contextlib
import dataclasses

import jax
import keras
import numpy as np

from tf_sparse_attention import layers
from tf_sparse_attention.kernels import mosaic, triton
from tf_sparse_attention.kernels.availability import MOSAIC, TRITON, Kernel, use_kernel
from tf_sparse_attention.kernels.kernel_mask import KernelMask, KernelSpec, Region
from tf_sparse_attention.patterns import First, Grid, Hashed, Nearest, Pattern, Successors, Window

BATCH, SIZE = 2, 24
HEADS = {"num_heads": 2, "key_dim": 8, "seed": 0}
MODULES = {MOSAIC: mosaic, TRITON: triton}
GROUPED = {"num_heads": 4, "num_key_value_heads": 2, "key_dim": 8, "seed": 0}
CLUSTERS = {"num_clusters": 5, "cluster_size": 40, **HEADS}
LARGE_CLUSTERS = {"num_clusters": 3, "cluster_size": 100, **HEADS}


@dataclasses.dataclass(frozen=True)
class Blocks(Pattern):
    """Blocks of 512, with a mask without a condition."""

    def visible(self, query, key):
        return ()

    def arrange(self, call, selection=None):
        return Grid(call.query_length, call.key_length, 512, 0, 0)


@dataclasses.dataclass(frozen=True)
class Listed(Pattern):
    """The keys a few distances back; a list is not hashable."""

    steps: list

    def visible(self, query, key):
        seen = [query.position - key.position == step for step in self.steps]
        return seen[0] | seen[1]

    def arrange(self, call, selection=None):
        return Grid(call.query_length, call.key_length, 64, 1, 0)


@dataclasses.dataclass(frozen=True)
class Tabled(Pattern):
    """Distances by a table, an array in the program of the mask."""

    def visible(self, query, key):
        before = query.position - key.position
        return before < 16, keras.ops.take(np.arange(16) % 3 == 0, keras.ops.clip(before, 0, 15))

    def arrange(self, call, selection=None):
        return Grid(call.query_length, call.key_length, 64, 1, 0)


@dataclasses.dataclass(frozen=True)
class NearOfCluster(Nearest):
    """The last keys of a cluster, at most 20 positions away."""

    def visible(self, query, key):
        return *super().visible(query, key), abs(query.position - key.position) <= 20


@dataclasses.dataclass(frozen=True)
class ClusterInBlocks(Nearest):
    """The keys of a cluster in the query's block and the one before."""

    def visible(self, query, key):
        return query.group == key.group, query.position // 20 - key.position // 20 <= 1

    def arrange(self, call, selection=None):
        return Grid(call.query_length, call.key_length, 20, 1, 0)


LAYERS = {
    "window": lambda: layers.LocalAttention(window=50, **HEADS),
    "rotary": lambda: layers.LocalAttention(window=50, position="rotary", value_dim=16, **HEADS),
    "blocks": lambda: layers.LocalAttention(block_size=64, num_blocks_after=1, **HEADS),
    "window of successors": lambda: layers.LocalAttention(window=50, use_successor_values=True, **HEADS),
    "window of queries": lambda: layers.SparseAttention(pattern=Window(30), share_qk=True, **HEADS),
    "union": lambda: layers.SparseAttention(pattern=Window(60) | First(3), **HEADS),
    "union of queries": lambda: layers.SparseAttention(pattern=First(3) | Window(60), share_qk=True, **HEADS),
    "nearest": lambda: layers.RoutingAttention(**CLUSTERS),
    "successors": lambda: layers.RoutingAttention(use_successor_values=True, **CLUSTERS),
    "strided": lambda: layers.StridedAttention(stride=7, heads="split", **HEADS),
    "dense": lambda: layers.DenseAttention(**HEADS),
    "alone": lambda: layers.SparseAttention(pattern=Window(1), share_qk=True, **HEADS),
    "no condition": lambda: layers.SparseAttention(pattern=Blocks(), **HEADS),
    "merged strides": lambda: layers.StridedAttention(stride=7, heads="merged", **HEADS),
    "hashed in rounds": lambda: layers.LSHAttention(num_buckets=6, bucket_size=40, num_rounds=3, **HEADS),
    "window and cluster": lambda: layers.SparseAttention(pattern=Window(30) | Nearest(5, 40), share_qk=True, **HEADS),
    "hashed, each once": lambda: layers.SparseAttention(
        pattern=Hashed(6, 40) | Hashed(6, 40, round=1) | Window(9), share_qk=True, **HEADS
    ),
    "span": lambda: layers.LocalAttention(
        window=50, adaptive_span={"ramp": 16, "initial": 0.5}, position="rotary", **HEADS
    ),
    "span from nothing": lambda: layers.LocalAttention(
        window=50, adaptive_span={"ramp": 1, "initial": 0.0}, use_successor_values=True, **HEADS
    ),
    "persistent": lambda: layers.AllAttention(num_persistent=70, window=50, **HEADS),
    "keys of their own": lambda: layers.RoutingAttention(share_qk=False, **LARGE_CLUSTERS),
    "window and separate": lambda: layers.SparseAttention(pattern=Window(30) | Nearest(3, 100), **HEADS),
    "best of clusters": lambda: layers.RoutingAttention(selection="top_k", **LARGE_CLUSTERS),
    "image": lambda: layers.LocalAttention2D(width=20, block_shape=(8, 9), **HEADS),
    "near of cluster": lambda: layers.SparseAttention(pattern=NearOfCluster(3, 100), share_qk=True, **HEADS),
    "fixed": lambda: layers.FixedAttention(block_size=70, num_summary=33, heads="merged", **HEADS),
    "grouped": lambda: layers.LocalAttention(window=50, position="rotary", use_sink=True, **GROUPED),
    "grouped successors": lambda: layers.LocalAttention(
        window=50, use_successor_values=True, adaptive_span={"ramp": 16, "initial": 0.5}, logit_soft_cap=0.5, **GROUPED
    ),
    "grouped and persistent": lambda: layers.AllAttention(num_persistent=70, window=50, logit_soft_cap=0.5, **GROUPED),
    "grouped clusters": lambda: layers.RoutingAttention(
        share_qk=False, num_clusters=3, cluster_size=100, logit_soft_cap=0.5, **GROUPED
    ),
    "selected": lambda: layers.BlockSelectedAttention(block_size=128, num_blocks=2, **HEADS),
    "grouped and selected": lambda: layers.BlockSelectedAttention(block_size=128, num_blocks=2, **GROUPED),
    "capped nearest": lambda: layers.RoutingAttention(logit_soft_cap=0.5, **CLUSTERS),
    "side by side": lambda: layers.MixedAttention([LAYERS["rotary"](), LAYERS["nearest"]()]),
}
# Not supported by kernels: biases, successor values of separate keys in clusters, chunks, global tokens, small groups,
# groups of grouped-query heads, and masks that are not hashable or not traceable.
OTHERS = {
    "alibi": lambda: layers.LocalAttention(window=50, position="alibi", **HEADS),
    "global": lambda: layers.GlobalLocalAttention(window=20, num_global=4, num_first_global=2, **HEADS),
    "float16": lambda: layers.LocalAttention(window=50, dtype="float16", **HEADS),
    "list": lambda: layers.SparseAttention(pattern=Listed([0, 3]), **HEADS),
    "table": lambda: layers.SparseAttention(pattern=Tabled(), **HEADS),
    "small groups": lambda: layers.SparseAttention(pattern=NearOfCluster(5, 40), share_qk=True, **HEADS),
    "cluster in blocks": lambda: layers.SparseAttention(pattern=ClusterInBlocks(5, 40), share_qk=True, **HEADS),
    "chunks": lambda: layers.LSHAttention(num_buckets=4, bucket_size=70, selection="chunks", num_rounds=2, **HEADS),
    "separate": lambda: layers.SparseAttention(pattern=Successors(Nearest(5, 40)), **HEADS),
}


def call_of(seed, length):
    """Return random arguments of a call: padding, documents, both or none; from seed 4 on with gaps.

    With gaps, a key mask without a query mask masks all keys of some queries, and documents resume after others.
    """
    rng = np.random.default_rng(seed)
    padded = np.ones((BATCH, length), bool)
    padded[0, rng.integers(1, length) :] = False
    padded[1, : rng.integers(0, length // 2)] = False
    documents = np.cumsum(rng.random((BATCH, length)) < 0.02, axis=1, dtype="int32") * 7 + np.iinfo("int32").min
    if seed == 4:
        return {"value_mask": abs(np.arange(length) - length // 2)[None].repeat(BATCH, 0) > 70}
    if seed > 4:
        padded, documents = rng.random((BATCH, length)) < 0.7, documents // 7 % 2
        return {"query_mask": padded, "segment_ids": documents}
    return {**({"query_mask": padded} if seed % 2 else {}), **({"segment_ids": documents} if seed // 2 % 2 else {})}


@contextlib.contextmanager
def used(kernel):
    """Use a `Kernel` within this context, and collect the arguments of its runs in a list."""
    module, ran = MODULES[kernel.name], []
    attend = module.attend
    module.attend = lambda *args: ran.append(args) or attend(*args)
    try:
        with use_kernel(kernel):
            yield ran
    finally:
        module.attend = attend


def step_of(layer, weights, arguments):
    """Return a compiled function of inputs and weights to gradients and output of a layer, and the weights."""
    states = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]

    def loss(x, trainable):
        output, _ = layer.stateless_call(trainable, states[1], x, **arguments)
        return (keras.ops.sin(keras.ops.cast(output, "float32")) * weights).sum(), output

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True)), states[0]


def compare(name, seed=0, length=300, causal=True, kernel=MOSAIC):
    """Return the number of kernels of a layer, and the errors of its output and gradients against plain operations."""
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(2, BATCH, length, SIZE)).astype("float32")
    layer, arguments = {**LAYERS, **OTHERS}[name](), call_of(seed, length) | {"use_causal_mask": causal}
    layer(x[:, :9], use_causal_mask=causal)

    def both():
        step, states = step_of(layer, weights, arguments)
        (_, output), gradients = step(x, states)
        return output, jax.tree.leaves(gradients)

    expected = both()
    with used(Kernel(kernel, interpret=True)) as ran:
        found = both()
    size = max(float(abs(gradient).max()) for gradient in expected[1])
    apart = [float(abs(a - b).max()) / size for a, b in zip(expected[1], found[1], strict=True)]
    return len(ran), float(abs(expected[0] - found[0]).max()), float(np.max(apart))  # NaN if one is


def compare_dense(window, kernel=MOSAIC):
    """Return the error of a kernel against dense attention, of a window in two groups of 140 positions."""
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 1, 2, 140, 8)).astype("float32")
    groups = rng.integers(0, 2, (1, 1, 140)).astype("int32")
    apart = np.arange(140)[:, None] - np.arange(140)
    seen = (abs(apart) < window) & (groups[:, :, :, None] == groups[:, :, None, :])
    scores = np.where(seen, query @ key.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = weights / weights.sum(axis=-1, keepdims=True) @ value
    mask = KernelMask(
        lambda query, key, own, other: (abs(query - key) < window) & (own["group"] == other["group"]),
        (Region(lambda query, key, *_: abs(query - key) < window, (1 - window, window - 1)),),
    )
    spec = KernelSpec(mask, (("group",), ("group",)), (140, 140), MODULES[kernel].block_sizes(mask, (140, 140)), True)
    output, sums = MODULES[kernel].attend(spec, query, key, value, ({"group": groups}, {"group": groups}))
    expected_sums = np.log(np.exp(scores).sum(axis=-1))
    return max(float(abs(output - expected).max()), float(abs(sums - expected_sums).max()))


def count_others():
    """Return the number of kernels of a window, and of calls that no kernel supports."""
    x, window = np.ones((1, 256, SIZE), "float32"), {"window": 50, **HEADS}
    drops = layers.LocalAttention(dropout=0.1, **window)
    calls = [(drops, {}), (drops, {"training": True}), (drops, {"return_attention_scores": True})]
    calls += [(drops, {"attention_mask": np.tri(256) > 0})]
    persistent = layers.AllAttention(num_persistent=3, dropout=0.1, **window)
    calls += [(persistent, {}), (persistent, {"training": True})]
    with used(Kernel(MOSAIC, interpret=True)) as ran:
        counts = [_count(ran, layer, x, **arguments) for layer, arguments in calls]
        counts += [_count(ran, layer, x[:0]) for layer in (drops, persistent)]
        with jax.enable_x64(True):
            counts.append(_count(ran, drops, x))
    return counts


def _count(ran, layer, x, **arguments):
    """Return the number of kernels that a call adds to `ran`."""
    before = len(ran)
    layer(x, use_causal_mask=True, **arguments)
    return len(ran) - before


def exported(kernel, folder):
    """Return the error of a SavedModel for any batch size, exported with a kernel, against its model on the CPU."""
    import tensorflow as tf

    inputs = keras.Input((300, SIZE))
    model = keras.Model(inputs, LAYERS["window"]()(inputs, use_causal_mask=True))
    x = np.random.default_rng(0).normal(size=(BATCH, 300, SIZE)).astype("float32")
    with use_kernel(Kernel(kernel)):
        model.export(folder, format="tf_saved_model", verbose=False)
    loaded = tf.saved_model.load(folder)
    return float(abs(np.asarray(loaded.serve(x)) - np.asarray(model(x))).max())
