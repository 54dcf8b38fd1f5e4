"""Top-k routing and top keys on cases that a reader can compute, and drawn ones against dense attention."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import draws, first
from tests.oracle import definitions
from tests.patterns.small_cases import attend_members, attend_pattern, column, selecting
from tf_sparse_attention.layers import SparseAttention
from tf_sparse_attention.ops.attend import attend
from tf_sparse_attention.ops.members import Members, best_members
from tf_sparse_attention.patterns import Heads, Nearest, TopKeys, Window
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.engine.head_plans import Leaf
from tf_sparse_attention.patterns.pattern import Call
from tf_sparse_attention.patterns.top_keys import KeySelection

VALUES = [1, 2, 4, 8, 16, 32]
# Cluster 0 takes tokens 0, 2, 3 and cluster 1 takes 2, 3, 5; nobody takes 1 and 4.
CLUSTERS = [[0, 2, 3], [2, 3, 5]]


def members(clusters):
    return Members(ops.convert_to_tensor(np.array(clusters, "int32")[None, None]), None)


def means(queries=CLUSTERS, keys=CLUSTERS, **options):
    """Attend with zero queries, for which every cluster gives the plain mean of the values it shows."""
    zeros = column([0] * 6)
    output, _ = attend_members(zeros, zeros, column(VALUES), members(queries), members(keys), **options)
    return ops.convert_to_numpy(output)[0, 0, :, 0]


def chosen(scores, size, mask=None):
    """Return positions and validity of one head, for scores given cluster by cluster."""
    scores = np.array(scores, "float32").T[None, None]
    found = best_members(scores, size, None if mask is None else np.array([mask]))
    valid = None if found.valid is None else ops.convert_to_numpy(found.valid)[0, 0].tolist()
    return ops.convert_to_numpy(found.positions)[0, 0].tolist(), valid


def test_a_token_gets_the_mean_over_its_clusters(subtests):
    first, second = 13 / 3, 44 / 3
    hidden = [1, 0, (2.5 + 4) / 2, (13 / 3 + 6) / 2, 0, 44 / 3]
    queries, keys = [[0, 1, 3]], [[1, 2, 5]]
    for name, found, expected in [
        ("all members", means(), [first, 0, (first + second) / 2, (first + second) / 2, 0, second]),
        ("causal by position", means(causal="position"), hidden),
        ("causal by rank", means(causal="rank"), hidden),
        ("separate, by position", means(queries, keys, causal="position"), [0, 2, 0, 3, 0, 0]),
        ("separate, by rank", means(queries, keys, causal="rank"), [2, 3, 0, 38 / 3, 0, 0]),
        ("without itself", means(causal="position", mask_self=True), [1, 0, (1 + 4) / 2, (2.5 + 4) / 2, 0, 6]),
        ("published count", means(extra_count=0.01)[:3], [13 / 3 / 1.01, 0, 19 / 2.01]),
        ("other sizes", means([[1, 4]], [[0, 2, 3]]), [0, 13 / 3, 0, 0, 13 / 3, 0]),
    ]:
        with subtests.test(name):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_members_are_the_best_unmasked_tokens_by_ascending_position():
    assert chosen([[5, 9, 1, 7], [0, 1, 2, 3]], 2) == ([[1, 3], [2, 3]], None)
    assert chosen([[1, 1, 1, 1], [0, 2, 2, 2]], 2) == ([[0, 1], [1, 2]], None)  # of equal scores the first tokens
    assert chosen([[3, 1, 2]], 8) == ([[0, 1, 2]], None)
    assert chosen([[9, 1, 8, 2]], 2, [False, True, False, True]) == ([[1, 3]], [[True, True]])
    positions, valid = chosen([[6, 5, 4, 3, 2, 1]], 4, [True, False, True, False, True, False])
    assert (positions[0][:3], valid) == ([0, 2, 4], [[True, True, True, False]])


@pytest.mark.parametrize("causal", first(["rank", None, "position"], 1))
def test_the_dense_pattern_of_each_cluster_shows_its_members(causal):
    rng = np.random.default_rng(0)
    scores = [np.round(rng.normal(size=(2, 1, length, 3))).astype("float32") for length in (9, 12)]
    exists = [rng.random((2, length)) < 0.7 for length in (9, 12)]
    members = [best_members(*side) for side in zip(scores, (4, 4), exists, strict=True)]
    call = Call(2, 9, 12, causal is not None)
    pattern = ops.convert_to_numpy(
        BestOfCluster(3, 4, causal_by_rank=causal == "rank").dense(call, MemberSelection(members))
    )
    for b in range(2):
        sides = [definitions.best_members(x[b, 0], 4, there[b]) for x, there in zip(scores, exists, strict=True)]
        for cluster, (queries, keys) in enumerate(zip(*sides, strict=True)):
            expected = np.zeros((9, 12), bool)
            for rank, i in enumerate(queries):
                shown = {"position": [j for j in keys if j <= i], "rank": keys[: rank + 1], None: keys}[causal]
                expected[i, shown] = True
            np.testing.assert_array_equal(pattern[b, 0, cluster], expected)


def test_a_cluster_without_any_token_gives_zeros():
    zeros, found = column([0] * 6), best_members(np.zeros((1, 1, 6, 2), "float32"), 3, np.zeros((1, 6), bool))
    for result in attend_members(zeros, zeros, column(VALUES), found, found, return_weights=True):
        assert np.abs(ops.convert_to_numpy(result)).max() == 0


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
