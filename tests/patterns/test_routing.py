"""Routing by the nearest centroid, top-k routing and top keys on cases that a reader can compute."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.oracle.definitions import bands
from tests.patterns.small_cases import VALUES, attend_groups, attend_members, means
from tf_sparse_attention.ops.members import Members, best_members

GROUPS = [1, 2, 1, 1, 2, 1]  # the sorted order is 0, 2, 3, 5 | 1, 4


def row(x):
    return np.array(x, "int32").reshape(1, 1, -1)


def shared(band=2, causal=True, **options):
    groups = row(GROUPS)
    return means(
        lambda query, _, value: attend_groups(query, None, value, groups, groups, band, causal=causal, **options)
    )


def separate(query_groups=GROUPS, key_groups=GROUPS, causal=True, **options):
    groups = row(query_groups), row(key_groups)
    values = VALUES[: len(key_groups)]
    return means(lambda *heads: attend_groups(*heads, *groups, 2, causal=causal, **options), values, len(query_groups))


OTHER_GROUPS = [1, 2, 2, 1, 2, 1], [3, 1, 1, 1, 2, 2]


def test_a_token_sees_the_band_of_its_cluster(subtests):
    for name, found, expected in [
        ("causal", shared(), [1, 2, 2.5, 6, 9, 20]),
        ("without itself unless alone", shared(mask_self=True), [1, 2, 1, 4, 2, 8]),
        ("both sides", shared(causal=False), [2.5, 9, 13 / 3, 44 / 3, 9, 20]),
        ("both sides without itself", shared(causal=False, mask_self=True), [4, 16, 4.5, 18, 2, 8]),
        ("a band of one", shared(band=1, mask_self=True), VALUES),
        ("separate", separate(), [1, 2, 2.5, 6, 9, 20]),
        # No key of cluster 2 is before position 4, none of cluster 1 before position 1.
        ("separate, other groups", separate(*OTHER_GROUPS), [0, 0, 0, 6, 16, 6]),
        ("separate, both sides", separate(*OTHER_GROUPS, causal=False), [2, 16, 16, 6, 24, 6]),
        ("separate without itself", separate(mask_self=True), [1, 2, 1, 4, 2, 8]),
        ("fewer keys", separate([1] * 6, [1] * 2), [1, 1.5, 1.5, 1.5, 1.5, 1.5]),
        ("more keys", separate([1] * 2, [1] * 6), [1, 1.5]),
    ]:
        with subtests.test(name):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("band", "causal"), first([(17, False), (33, True), (16, False), (17, True)], 1))
def test_bands_of_about_a_block_reach_to_their_ends_at_every_offset(band, causal):
    # Blocks are of 16 or 32 slots. In head h the keys of the group begin at position h, so that all alignments occur.
    length, heads = 90, 18
    key_groups = np.array([[2] * h + [1] * (length - h) for h in range(heads)], "int32")
    query_groups = np.ones((heads, length), "int32")
    query_groups[-1, np.arange(length) % 17 < 16] = 2  # runs of keys without a query among them
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, heads, length, 2)).astype("float32")
    found = attend_groups(query, key, value, query_groups[None], key_groups[None], band, causal=causal).output
    for head in range(heads):
        allowed, _ = bands(query_groups[head], key_groups[head], band, causal)
        weights = np.exp(query[0, head] @ key[0, head].T) * allowed
        expected = weights @ value[0, head] / np.maximum(weights.sum(1, keepdims=True), 1e-30)
        np.testing.assert_allclose(ops.convert_to_numpy(found)[0, head], expected, rtol=0, atol=1e-5)


# Cluster 0 takes tokens 0, 2, 3 and cluster 1 takes 2, 3, 5; nobody takes 1 and 4.
CLUSTERS = [[0, 2, 3], [2, 3, 5]]


def members(clusters):
    return Members(ops.convert_to_tensor(np.array(clusters, "int32")[None, None]), None)


def means_of(queries=CLUSTERS, keys=CLUSTERS, **options):
    """Return the means over clusters with given members of queries and keys."""
    return means(lambda *heads: attend_members(*heads, members(queries), members(keys), **options))


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
        ("all members", means_of(), [first, 0, (first + second) / 2, (first + second) / 2, 0, second]),
        ("causal by position", means_of(causal="position"), hidden),
        ("causal by rank", means_of(causal="rank"), hidden),
        ("separate, by position", means_of(queries, keys, causal="position"), [0, 2, 0, 3, 0, 0]),
        ("separate, by rank", means_of(queries, keys, causal="rank"), [2, 3, 0, 38 / 3, 0, 0]),
        ("without itself", means_of(causal="position", mask_self=True), [1, 0, (1 + 4) / 2, (2.5 + 4) / 2, 0, 6]),
        ("published count", means_of(extra_count=0.01)[:3], [13 / 3 / 1.01, 0, 19 / 2.01]),
        ("other sizes", means_of([[1, 4]], [[0, 2, 3]]), [0, 13 / 3, 0, 0, 13 / 3, 0]),
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
