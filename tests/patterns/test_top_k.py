"""Top-k routing on cases that a reader can compute: members, their order, the mean over clusters."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.oracle import definitions
from tests.patterns.small_cases import attend_members, column
from tf_sparse_attention.ops.members import Members, best_members
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.pattern import Call

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
