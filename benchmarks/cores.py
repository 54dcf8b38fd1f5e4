"""Attention cores: functions of heads (B, N, T, H), additional arrays (N, ..) and the number of keys per query."""

import numpy as np
from keras import ops

from benchmarks.worker import DENSE
from tf_sparse_attention.ops import hashing, kmeans
from tf_sparse_attention.ops.clustered_attention import clustered_attention, improved_clustered_attention
from tf_sparse_attention.ops.gather import token_groups
from tf_sparse_attention.ops.hashing import evenly_spaced_tokens, hamming_clusters, hash_bits
from tf_sparse_attention.ops.members import best_members
from tf_sparse_attention.patterns import (
    Blocks,
    Hashed,
    Heads,
    ImageBlocks,
    Nearest,
    SelectedBlocks,
    Stride,
    Successors,
    Summary,
    Window,
)
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.engine.attention import attend_pattern
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions
from tf_sparse_attention.patterns.group_band import GroupSelection

STRIDE, NUM_SUMMARY = 128, 8  # Child et al. 2019
WIDTH, BLOCK = 64, (8, 8)  # width and block of an image in row-major order
NUM_CLUSTERS, NUM_BITS, NUM_ITERATIONS, TOP_K = 100, 32, 10, 32  # Vyas et al. 2020


def scaled(query):
    return query * query.shape[-1] ** -0.5


def causal(pattern, query, key, value, select=None, **options):
    options = AttentionOptions(**options)
    return attend_pattern(pattern, query, key, value, causal=True, select=select, options=options).output


def local(query, key, value, extras, span):
    return causal(Window(span), scaled(query), key, value)


def image(query, key, value, extras, span):
    return causal(ImageBlocks(WIDTH, BLOCK), scaled(query), key, value)


def _selected(*groups):
    """Return the `select` function for given groups of queries and keys."""
    return lambda *_: [GroupSelection(groups[0], groups[-1])]


def hashed(query, key, value, extras, span):
    num_buckets = 2 * extras[0].shape[-1]
    (buckets,) = hashing.lsh_buckets(query, extras[0][None])
    select = _selected(token_groups(buckets, num_buckets))
    keys = _as(value, hashing.l2_normalize(query))
    return causal(Hashed(num_buckets, span), scaled(query), keys, value, select=select, hide_self="unless_alone")


def nearest(query, key, value, extras, span):
    return _in_clusters(Nearest(extras[0].shape[1], span), query, value, extras[0])


def successors(query, key, value, extras, span):
    return _in_clusters(Successors(Nearest(extras[0].shape[1], span)), query, value, extras[0])


def _in_clusters(pattern, query, value, centroids):
    query = kmeans.normalize(query)
    select = _selected(token_groups(kmeans.nearest(query, centroids), centroids.shape[1]))
    return causal(pattern, _as(value, query), None, value, select=select, hide_self="unless_alone")


def _as(value, x):
    """Cast an array, computed in float32, to the dtype of `value`, like layers do."""
    return ops.cast(x, value.dtype)


def nearest_separate(query, key, value, extras, span):
    query, key = kmeans.normalize(query), kmeans.normalize(key)
    num_clusters = extras[0].shape[1]
    select = _selected(*(token_groups(kmeans.nearest(x, extras[0]), num_clusters) for x in (query, key)))
    return causal(Nearest(num_clusters, span), _as(value, query), _as(value, key), value, select=select)


def top_k(query, key, value, extras, span):
    query = kmeans.normalize(query)
    members = best_members(kmeans.scores(query, extras[0]), span)
    pattern = BestOfCluster(extras[0].shape[1], span, causal_by_rank=True)
    return causal(pattern, _as(value, query), None, value, select=lambda *_: [MemberSelection((members, members))])


def selected(query, key, value, extras, span):
    return causal(SelectedBlocks(), scaled(query), key, value)


def strided(query, key, value, extras, span):
    half = query.shape[1] // 2
    return causal(Heads(((half, Window(STRIDE)), (half, Stride(STRIDE)))), scaled(query), key, value)


def fixed(query, key, value, extras, span):
    half = query.shape[1] // 2
    pattern = Heads(((half, Blocks(STRIDE, 0)), (half, Summary(STRIDE, NUM_SUMMARY))))
    return causal(pattern, scaled(query), key, value)


def all_attention(query, key, value, extras, span):
    return causal(Window(span), scaled(query), key, value, persistent=extras)


def clustered(query, key, value, extras, span):
    heads = scaled(query), key, value
    return clustered_attention(*heads, _clusters(query), NUM_CLUSTERS).output


def improved_clustered(query, key, value, extras, span):
    heads = scaled(query), key, value
    return improved_clustered_attention(*heads, _clusters(query), NUM_CLUSTERS, TOP_K).output


def _clusters(query):
    batch, _, length, size = query.shape
    planes = np.random.default_rng(0).standard_normal((NUM_BITS, size + 1), dtype="float32")
    starts = evenly_spaced_tokens(ops.ones((batch, length), "bool"), NUM_CLUSTERS, length)
    return hamming_clusters(hash_bits(query, ops.convert_to_tensor(planes)), NUM_CLUSTERS, NUM_ITERATIONS, starts)


def keras_dense(query, key, value, extras, span):
    return ops.dot_product_attention(query, key, value, is_causal=True)  # (B, T, N, H), as in Keras


CORES = {
    "local": local,
    "local, grouped": local,
    "image": image,
    "nearest": nearest,
    "nearest, separate keys": nearest_separate,
    "successors": successors,
    "top_k": top_k,
    "lsh": hashed,
    "selected": selected,
    "selected, grouped": selected,
    "strided": strided,
    "fixed": fixed,
    "all-attention": all_attention,
    "clustered": clustered,
    "improved clustered": improved_clustered,
    DENSE: keras_dense,
}
SHARED = ("nearest", "successors", "top_k", "lsh")  # queries are the keys
KEY_HEADS = {"local, grouped": 2, "selected, grouped": 2}  # number of key-value heads
SLOTTED = {"all-attention": 1024}  # persistent vectors
