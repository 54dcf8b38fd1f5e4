"""Top keys of clusters on cases that a reader can compute, and their gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.oracle import definitions
from tests.patterns.small_cases import VALUES, attend_pattern, means, selecting
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import Members, best_members, cluster_sets, single_cluster_sets
from tf_sparse_attention.patterns import Heads, Nearest, TopKeys, Window
from tf_sparse_attention.patterns.engine.head_plans import Leaf
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.top_keys import KeySelection

# Cluster 0 has keys 0, 1 and 3, cluster 1 has 1, 2 and 5; nobody has 4.
MEMBERS = [[0, 1, 3], [1, 2, 5]]


def chosen(clusters):
    clusters, positions = (ops.convert_to_tensor(np.array(x, "int32")[None, None]) for x in (clusters, MEMBERS))
    return KeySelection(clusters, Members(positions, None), len(VALUES))


def means_of(clusters, **options):
    selected = chosen(clusters)
    return means(
        lambda *heads: attend_pattern(TopKeys(2, 3), *heads, select=selecting(selected), **options),
        num_queries=len(clusters),
    )


def test_documents_and_masked_pairs_hide_keys_that_still_count():
    segments = np.array([[0, 0, 1, 1, 1, 1]])
    masks = TokenMasks(query_segments=segments, key_segments=segments)
    np.testing.assert_allclose(means_of([0, 1, 0, 1, 1, 0], masks=masks), [1.5, 2, 8, 18, 18, 8], rtol=1e-6)
    allowed = np.ones((1, 1, 2, 6), bool)
    allowed[..., 0, 3] = False
    np.testing.assert_allclose(means_of([0, 0], masks=TokenMasks(attention_mask=allowed)), [1.5, 11 / 3], rtol=1e-6)


def test_sets_of_clusters_are_bits_of_as_many_integers_as_they_need():
    for num_clusters in (1, 31, 32, 65):
        rng = np.random.default_rng(0)
        is_in, own = rng.random((2, 1, num_clusters, 9)) < 0.3, rng.integers(0, num_clusters, (2, 1, 5), "int32")
        sets, queries = cluster_sets(is_in), single_cluster_sets(ops.convert_to_tensor(own), num_clusters)
        assert len(sets) == -(-num_clusters // 31) and list(sets) == list(queries)
        common = sum((queries[name][..., :, None] & sets[name][..., None, :]) for name in sets) != 0
        expected = np.take_along_axis(is_in, own[..., None].repeat(9, -1), axis=2)
        np.testing.assert_array_equal(common, expected)


@draws(4, 60)
@given(st.integers(1, 80), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 999))
def test_output_weights_and_gradients_equal_dense_attention_with_the_reference_mask(
    num_queries, num_keys, num_clusters, size, seed
):
    rng, pattern = np.random.default_rng(seed), TopKeys(num_clusters, size)
    query, key, value, slope = (
        tf.constant(rng.normal(size=(2, 2, length, 3)), "float64")
        for length in (num_queries, num_keys, num_keys, num_queries)
    )
    exists = rng.random((2, num_keys)) < 0.7
    scores = np.round(rng.normal(size=(2, 2, num_keys, num_clusters))).astype("float32")  # many are equal
    clusters = rng.integers(0, num_clusters, (2, 2, num_queries), "int32")
    members = best_members(scores, pattern.cluster_size, exists)
    selected = KeySelection(ops.convert_to_tensor(clusters), members, num_keys)
    twin = ops.convert_to_numpy(Leaf(pattern, 0).dense(Call(2, num_queries, num_keys), selected))
    for row, head in np.ndindex(2, 2):
        members = definitions.best_members(scores[row, head], size, exists[row])
        allowed, _ = definitions.chosen_keys(clusters[row, head], members, num_keys)
        np.testing.assert_array_equal(twin[row, head], allowed)
    results = []
    for run in (
        lambda: attend_pattern(pattern, query, key, value, select=selecting(selected), return_weights=True),
        lambda: attend(query, key, value, mask=tf.constant(twin), return_weights=True),
    ):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output, weights, _ = run()
        results.append([output, weights, *tape.gradient(output, [query, key, value], slope)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_a_causal_call_of_a_composition_is_refused():
    for pattern in (Window(2) | TopKeys(3, 4), Heads([(1, Window(2)), (1, TopKeys(3, 4))])):
        layer = SparseAttention(2, 4, pattern)
        assert not layer.pattern.can_be_causal and layer.cross_cache_unsupported_reason is None
        with pytest.raises(ValueError, match=r"must be False with SparseAttention \(TopKeys\), which"):
            layer(np.ones((1, 5, 6), "float32"), use_causal_mask=True)
    assert SparseAttention(2, 4, Window(2) | Nearest(3, 4)).pattern.can_be_causal
