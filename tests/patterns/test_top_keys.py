"""Top keys of clusters on cases that a reader can compute, and their gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws
from tests.oracle import definitions
from tests.patterns.small_cases import attend_pattern, selecting
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.members import best_members
from tf_sparse_attention.patterns import Heads, Nearest, TopKeys, Window
from tf_sparse_attention.patterns.engine.head_plans import Leaf
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.top_keys import KeySelection


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
