"""Top-k routing on cases that a reader can compute: members, their order, the mean over clusters."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.oracle import definitions
from tests.patterns.small_cases import attend_members, column
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.ops.members import Members, best_members, scatter_mean
from tf_sparse_attention.ops.positions import Relative
from tf_sparse_attention.patterns.best_of_cluster import BestOfCluster, MemberSelection
from tf_sparse_attention.patterns.engine.attention import visible_pairs
from tf_sparse_attention.patterns.engine.head_plans import AttentionOptions, Inputs, Leaf
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


def test_relative_positions_go_by_rank_in_the_cluster():
    # Of cluster 0, 2, 3 the last token sees ranks -2, -1 and 0; the table is clipped at 1.
    position = Relative(np.zeros((3, 1), "float32"), np.array([[10], [20], [30]], "float32"))
    found = means([[0, 2, 3]], [[0, 2, 3]], position=position)[3]
    np.testing.assert_allclose(found, (13 + 10 + 10 + 20) / 3, rtol=1e-6)


def test_documents_and_masked_pairs_do_not_see_each_other():
    segments = np.array([[0, 0, 1, 1, 1, 1]])
    masks = TokenMasks(query_segments=segments, key_segments=segments)
    np.testing.assert_allclose(means([[0, 2, 3]], [[0, 2, 3]], masks=masks), [1, 0, 6, 6, 0, 0], rtol=1e-6)
    mask = np.ones((1, 1, 6, 6), bool)
    mask[0, 0, 3, 2] = False
    masked = means([[0, 2, 3]], [[0, 2, 3]], masks=TokenMasks(attention_mask=mask))
    np.testing.assert_allclose(masked, [13 / 3, 0, 13 / 3, 4.5, 0, 0], rtol=1e-6)


def test_members_are_the_best_unmasked_tokens_by_ascending_position():
    assert chosen([[5, 9, 1, 7], [0, 1, 2, 3]], 2) == ([[1, 3], [2, 3]], None)
    assert chosen([[1, 1, 1, 1], [0, 2, 2, 2]], 2) == ([[0, 1], [1, 2]], None)  # of equal scores the first tokens
    assert chosen([[3, 1, 2]], 8) == ([[0, 1, 2]], None)
    assert chosen([[9, 1, 8, 2]], 2, [False, True, False, True]) == ([[1, 3]], [[True, True]])
    positions, valid = chosen([[6, 5, 4, 3, 2, 1]], 4, [True, False, True, False, True, False])
    assert (positions[0][:3], valid) == ([0, 2, 4], [[True, True, True, False]])


def test_a_cluster_without_any_token_gives_zeros():
    exists = np.zeros((1, 6), bool)
    zeros, value = column([0] * 6), column(VALUES)
    found = best_members(np.zeros((1, 1, 6, 2), "float32"), 3, exists)
    output, weights = attend_members(zeros, zeros, value, found, found, return_weights=True)
    assert np.abs(ops.convert_to_numpy(output)).max() == 0
    assert np.abs(ops.convert_to_numpy(weights)).max() == 0


def test_without_any_mask_every_member_may_attend():
    pattern = BestOfCluster(1, 1)
    selected = MemberSelection((members(CLUSTERS), members(CLUSTERS)))
    grid = pattern.arrange(Call(1, 6, 6), selected)
    inputs = Inputs(None, None, None, [None], TokenMasks(), AttentionOptions())
    assert visible_pairs(grid, Leaf(pattern, 0), inputs, Call(1, 6, 6)) is None


def test_invalid_members_are_not_averaged():
    found = Members(
        np.array([[[[0, 1]], [[1, 2]]]], "int32").reshape(1, 1, 2, 2), np.array([[[[True, True], [False, True]]]])
    )
    x = np.array([1, 2, 30, 4], "float32").reshape(1, 1, 2, 2, 1)
    assert ops.convert_to_numpy(scatter_mean(x, found, 4)).ravel().tolist() == [1, 2, 4, 0]


def test_weights_are_averaged_as_outputs():
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 1, 1, 6, 4)).astype("float32")
    output, weights = attend_members(query, key, value, members(CLUSTERS), members(CLUSTERS), return_weights=True)
    np.testing.assert_allclose(ops.convert_to_numpy(weights)[0, 0] @ value[0, 0], output[0, 0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(weights)[0, 0].sum(-1), [1, 0, 1, 1, 0, 1], rtol=1e-6)


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
