"""Attention cores: functions of heads (B, N, T, H), what else they need, (N, ..), and the keys a query sees."""

import numpy as np
from keras import ops

from benchmarks.worker import DENSE
from tf_sparse_attention.ops import kmeans, lsh, routing
from tf_sparse_attention.ops.clustered import clustered_attention, improved_clustered_attention
from tf_sparse_attention.ops.fixed import Columns, fixed_attention
from tf_sparse_attention.ops.groups import groups_of
from tf_sparse_attention.ops.hamming import evenly_spaced, hamming_clusters, hash_bits
from tf_sparse_attention.ops.images import Image
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.local_2d import local_attention_2d
from tf_sparse_attention.ops.routing_separate import separate_attention
from tf_sparse_attention.ops.routing_top_k import best_members, top_k_attention
from tf_sparse_attention.ops.strided import strided_attention

STRIDE, NUM_SUMMARY = 128, 8  # Child et al. 2019
WIDTH, BLOCK = 64, (8, 8)  # of an image whose rows follow one another
NUM_CLUSTERS, NUM_BITS, NUM_ITERATIONS, TOP_K = 100, 32, 10, 32  # Vyas et al. 2020


def local(query, key, value, extras, span):
    scale = query.shape[-1] ** -0.5
    return local_attention(query * scale, key, value, window=span, causal=True)[0]


def image(query, key, value, extras, span):
    scale = query.shape[-1] ** -0.5
    return local_attention_2d(query * scale, key, value, Image(WIDTH, BLOCK), causal=True).output


def hashed(query, key, value, extras, span):
    (buckets,) = lsh.buckets(query, extras[0][None])
    groups = groups_of(buckets, 2 * extras[0].shape[-1])
    keys = lsh.unit(query)
    return routing.nearest_attention(query * query.shape[-1] ** -0.5, value, groups, span, key=keys)[0]


def nearest(query, key, value, extras, span):
    query = kmeans.normalize(query)
    groups = groups_of(kmeans.nearest(query, extras[0]), extras[0].shape[1])
    return routing.nearest_attention(query, value, groups, span)[0]


def nearest_separate(query, key, value, extras, span):
    query, key = kmeans.normalize(query), kmeans.normalize(key)
    groups = [groups_of(kmeans.nearest(x, extras[0]), extras[0].shape[1]) for x in (query, key)]
    return separate_attention(query, key, value, *groups, span)[0]


def top_k(query, key, value, extras, span):
    query = kmeans.normalize(query)
    members = best_members(kmeans.scores(query, extras[0]), span)
    return top_k_attention(query, query, value, members, members, causal="rank")[0]


def strided(query, key, value, extras, span):
    return _split(lambda *heads, part: strided_attention(*heads, STRIDE, part, causal=True), query, key, value)


def fixed(query, key, value, extras, span):
    columns = Columns(STRIDE, NUM_SUMMARY)
    return _split(lambda *heads, part: fixed_attention(*heads, columns, part, causal=True), query, key, value)


def _split(attend, query, key, value):
    """Returns attention whose first half of the heads has the local part, the other half the far one."""
    query = query * query.shape[-1] ** -0.5
    halves = zip(*(ops.split(x, 2, axis=1) for x in (query, key, value)), strict=True)
    parts = [attend(*heads, part=part).output for heads, part in zip(halves, ("local", "far"), strict=True)]
    return ops.concatenate(parts, axis=1)


def all_attention(query, key, value, extras, span):
    scale = query.shape[-1] ** -0.5
    return local_attention(query * scale, key, value, window=span, causal=True, slots=extras).output


def clustered(query, key, value, extras, span):
    heads = query * query.shape[-1] ** -0.5, key, value
    return clustered_attention(*heads, _clusters(query), NUM_CLUSTERS).output


def improved_clustered(query, key, value, extras, span):
    heads = query * query.shape[-1] ** -0.5, key, value
    return improved_clustered_attention(*heads, _clusters(query), NUM_CLUSTERS, TOP_K).output


def _clusters(query):
    batch, _, length, size = query.shape
    planes = np.random.default_rng(0).standard_normal((NUM_BITS, size + 1), dtype="float32")
    starts = evenly_spaced(ops.ones((batch, length), "bool"), NUM_CLUSTERS, length)
    return hamming_clusters(hash_bits(query, ops.convert_to_tensor(planes)), NUM_CLUSTERS, NUM_ITERATIONS, starts)


def keras_dense(query, key, value, extras, span):
    return ops.dot_product_attention(query, key, value, is_causal=True)  # heads last, as Keras has them


CORES = {
    "local": local,
    "image": image,
    "nearest": nearest,
    "nearest, separate keys": nearest_separate,
    "top_k": top_k,
    "lsh": hashed,
    "strided": strided,
    "fixed": fixed,
    "all-attention": all_attention,
    "clustered": clustered,
    "improved clustered": improved_clustered,
    DENSE: keras_dense,
}
SHARED = ("nearest", "top_k", "lsh")  # queries are the keys
SLOTTED = {"all-attention": 1024}  # persistent vectors
