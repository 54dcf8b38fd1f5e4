"""One graph of unknown batch and length, and XLA for a length that is known, give what eager execution gives."""

import numpy as np
import pytest
from keras import ops

from tests.ops.compare import TOLERANCE, differentiate
from tests.ops.forms import (
    Columns,
    chunk_attention,
    fixed_attention,
    local_attention,
    local_attention_2d,
    nearest_attention,
    random_clusters,
    separate_attention,
    strided_attention,
    top_k_attention,
)
from tests.ops.plans import Plan, draw, make_position
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.groups import groups_of, segment_ranks
from tf_sparse_attention.ops.images import Image
from tf_sparse_attention.ops.lsh import buckets
from tf_sparse_attention.ops.masks import TokenMasks, with_heads
from tf_sparse_attention.ops.members import best_members, strided_members

tf = pytest.importorskip("tensorflow")

HEADS, SIZE, CLUSTERS, REACH = 2, 4, 3, 5
ROTATIONS = np.random.default_rng(1).normal(size=(2, HEADS, SIZE, SIZE)).astype("float32")
CENTROIDS = np.random.default_rng(0).normal(size=(HEADS, CLUSTERS, SIZE)).astype("float32")


def masks_of(exists, segments, pairs):
    return TokenMasks(exists, exists, with_heads(pairs), segments, segments)


def by_window(x, position, exists, segments, pairs):
    options = {"window": 6, "causal": True, "masks": masks_of(exists, segments, pairs), "position": position}
    return local_attention(x["query"], x["key"], x["value"], **options, return_weights=True)[:2]


def by_blocks(x, position, exists, segments, pairs):
    options = {"masks": masks_of(exists, segments, pairs), "position": position}
    return local_attention(x["query"], x["key"], x["value"], 5, 1, 2, **options, return_weights=True)[:2]


def by_raster(x, position, exists, segments, pairs):
    options = {"causal": True, "masks": masks_of(exists, segments, pairs), "position": position}
    return local_attention_2d(x["query"], x["key"], x["value"], Image(7, (2, 3)), **options, return_weights=True)[:2]


def by_image_blocks(x, position, exists, segments, pairs):
    options = {"masks": masks_of(exists, segments, pairs), "position": position}
    image = Image(6, (3, 2), "blocks")
    return local_attention_2d(x["query"], x["key"], x["value"], image, **options, return_weights=True)[:2]


def by_cut_blocks(x, position, exists, segments, pairs):
    options = {"causal": True, "masks": masks_of(exists, segments, pairs), "position": position}
    image = Image(7, (3, 2), "blocks", height=10)
    return local_attention_2d(x["query"], x["key"], x["value"], image, **options, return_weights=True)[:2]


def by_strides(x, position, exists, segments, pairs):
    options = {"causal": True, "masks": masks_of(exists, segments, pairs), "position": position}
    return strided_attention(x["query"], x["key"], x["value"], 6, "merged", **options, return_weights=True)[:2]


def by_summaries(x, position, exists, segments, pairs):
    options = {"causal": True, "masks": masks_of(exists, segments, pairs), "position": position}
    columns = Columns(32, 5)
    return fixed_attention(x["query"], x["key"], x["value"], columns, "merged", **options, return_weights=True)[:2]


def by_nearest(x, position, exists, segments, pairs):
    query = kmeans.normalize(x["query"])
    clusters = kmeans.nearest(query, CENTROIDS)
    groups = groups_of(clusters, CLUSTERS, exists, *segment_ranks(segments))
    masks = TokenMasks(attention_mask=with_heads(pairs))
    return nearest_attention(query, x["value"], groups, 4, masks=masks, position=position, return_weights=True)[:2]


def by_separate(x, position, exists, segments, pairs):
    query, key = kmeans.normalize(x["query"]), kmeans.normalize(x["key"])
    groups = [
        groups_of(kmeans.nearest(side, CENTROIDS), CLUSTERS, exists, rank)
        for side, rank in zip((query, key), segment_ranks(segments, segments), strict=True)
    ]
    options = {"causal": False, "masks": TokenMasks(attention_mask=with_heads(pairs)), "position": position}
    return separate_attention(query, key, x["value"], *groups, 4, **options, return_weights=True)[:2]


def by_random(x, position, exists, segments, pairs):
    length = ops.shape(x["query"])[2]
    groups = groups_of(random_clusters(HEADS, length, CLUSTERS, seed=3), CLUSTERS, exists, *segment_ranks(segments))
    masks = TokenMasks(attention_mask=with_heads(pairs))
    return nearest_attention(x["query"], x["value"], groups, 4, masks=masks, position=position, return_weights=True)[:2]


def by_top_k(x, position, exists, segments, pairs):
    query, key = kmeans.normalize(x["query"]), kmeans.normalize(x["key"])
    members = [best_members(kmeans.scores(side, CENTROIDS), 5, exists) for side in (query, key)]
    options = {"causal": "position", "masks": masks_of(exists, segments, pairs), "position": position}
    return top_k_attention(query, key, x["value"], *members, **options, return_weights=True)


def by_strides_of_scores(x, position, exists, segments, pairs):
    query, key = kmeans.normalize(x["query"]), kmeans.normalize(x["key"])
    members = [strided_members(kmeans.scores(side, CENTROIDS), 5, exists) for side in (query, key)]
    options = {"causal": "rank", "masks": masks_of(exists, segments, pairs), "position": position}
    return top_k_attention(query, key, x["value"], *members, **options, return_weights=True)


def by_chunks(x, position, exists, segments, pairs):
    groups = [
        [groups_of(one, 2 * SIZE, exists, rank) for one in buckets(x[side], ROTATIONS)]
        for side, rank in zip(("query", "key"), segment_ranks(segments, segments), strict=True)
    ]
    options = {"masks": masks_of(exists, segments, pairs), "position": position, "return_weights": True}
    return chunk_attention(x["query"], x["key"], x["value"], *groups, 6, **options)[:2]


FORMS = [
    by_window,
    by_blocks,
    by_raster,
    by_image_blocks,
    by_cut_blocks,
    by_strides,
    by_summaries,
    by_nearest,
    by_separate,
    by_random,
    by_top_k,
    by_strides_of_scores,
    by_chunks,
]
# Tables are what depends most on the shape; the others are tried where distances are computed differently.
CASES = [
    *((form, "relative") for form in FORMS),
    (by_blocks, "alibi"),
    (by_summaries, "alibi"),
    (by_nearest, "rotary"),
    (by_separate, "alibi"),
]


# One form of each engine; those of the others are `large`.
QUICK = (by_window, by_cut_blocks, by_summaries, by_nearest, by_separate, by_top_k, by_chunks)


def quick_or_large(form, *others):
    return pytest.param(form, *others, marks=() if form in QUICK else pytest.mark.large)


def numbers_of(length, position):
    plan = Plan(
        "local",
        batch=1 + length % 3,
        num_queries=length,
        num_keys=length,
        value_size=SIZE,
        position=position,
        reach=REACH,
        key_mask=True,
        segments=True,
        attention_mask=(1 + length % 3, length, length),
    )
    inputs, masks, cotangent = draw(plan, seed=length)
    return plan, inputs, [masks["query_mask"], masks["query_segments"], masks["attention_mask"]], cotangent


def run(form, plan, inputs, masks, cotangent):
    return differentiate(lambda x: form(x, make_position(plan, x), *masks), inputs, cotangent)


def assert_same(actual, expected):
    actual, expected = tf.nest.flatten(actual), tf.nest.flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        scale = max(1.0, np.abs(e).max())
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE["float32"] * scale)


@pytest.mark.parametrize(
    ("form", "position"), [quick_or_large(*case) for case in CASES], ids=lambda x: getattr(x, "__name__", x)
)
def test_one_graph_serves_all_lengths(form, position):
    plan, inputs, _, _ = numbers_of(7, position)
    tables = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in inputs.items() if name.endswith("table")}
    vectors = tf.TensorSpec((None, HEADS, None, SIZE), tf.float32)
    specs = {name: tables.get(name, vectors) for name in inputs}
    tokens = [tf.TensorSpec((None, None), dtype) for dtype in (tf.bool, tf.int32)]
    pairs = tf.TensorSpec((None, None, None), tf.bool)

    @tf.function(input_signature=[specs, [*tokens, pairs], vectors])
    def graph(inputs, masks, cotangent):
        return run(form, plan, inputs, masks, cotangent)

    for length in (1, 7, 65):
        _, inputs, masks, cotangent = numbers_of(length, position)
        masks = [tf.constant(mask) for mask in masks]
        inputs = {name: tf.constant(x) for name, x in inputs.items()}
        assert_same(graph(inputs, masks, tf.constant(cotangent)), run(form, plan, inputs, masks, cotangent))


@pytest.mark.parametrize("form", [quick_or_large(form) for form in FORMS], ids=lambda x: x.__name__)
def test_xla_gives_the_same_for_a_known_length(form, position="relative"):
    plan, inputs, masks, cotangent = numbers_of(65, position)
    compiled = tf.function(lambda *x: run(form, plan, *x), jit_compile=True)
    masks = [tf.constant(mask) for mask in masks]
    inputs = {name: tf.constant(x) for name, x in inputs.items()}
    assert_same(compiled(inputs, masks, tf.constant(cotangent)), run(form, plan, inputs, masks, cotangent))
