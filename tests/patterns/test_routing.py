"""Routing by the nearest centroid on cases that a reader can compute: groups, bands, documents, padding."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.oracle.definitions import bands
from tests.patterns.small_cases import attend_groups, column
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.gather import NO_GROUP, token_groups
from tf_sparse_attention.ops.positions import Rotary

VALUES = [1, 2, 4, 8, 16, 32]
GROUPS = [1, 2, 1, 1, 2, 1]  # the sorted order is 0, 2, 3, 5 | 1, 4


def row(x):
    return np.array(x, "int32").reshape(1, 1, -1)


def shared_means(groups=GROUPS, cluster_size=2, **options):
    """Attend with zero queries, for which the output is the plain mean of the values seen."""
    zeros, groups = column([0] * len(groups)), row(groups)
    values = column(VALUES[: groups.size])
    output = attend_groups(zeros, None, values, groups, groups, cluster_size, **{"causal": True, **options}).output
    return ops.convert_to_numpy(output)[0, 0, :, 0].tolist()


def separate_means(query_groups=GROUPS, key_groups=GROUPS, cluster_size=2, values=VALUES, **options):
    zeros = column([0] * len(query_groups)), column([0] * len(key_groups))
    groups = row(query_groups), row(key_groups)
    output = attend_groups(*zeros, column(values), *groups, cluster_size, **{"causal": True, **options}).output
    return ops.convert_to_numpy(output)[0, 0, :, 0].tolist()


OTHER_GROUPS = [1, 2, 2, 1, 2, 1], [3, 1, 1, 1, 2, 2]


def test_a_token_sees_the_band_of_its_cluster(subtests):
    for name, found, expected in [
        ("causal", shared_means(mask_self=False), [1, 2, 2.5, 6, 9, 20]),
        ("without itself unless alone", shared_means(mask_self=True), [1, 2, 1, 4, 2, 8]),
        ("both sides", shared_means(causal=False, mask_self=False), [2.5, 9, 13 / 3, 44 / 3, 9, 20]),
        ("both sides without itself", shared_means(causal=False, mask_self=True), [4, 16, 4.5, 18, 2, 8]),
        ("a band of one", shared_means(cluster_size=1, mask_self=True), VALUES),
        ("separate", separate_means(), [1, 2, 2.5, 6, 9, 20]),
        # No key of cluster 2 is before position 4, none of cluster 1 before position 1.
        ("separate, other groups", separate_means(*OTHER_GROUPS), [0, 0, 0, 6, 16, 6]),
        ("separate, both sides", separate_means(*OTHER_GROUPS, causal=False), [2, 16, 16, 6, 24, 6]),
        ("separate without itself", separate_means(mask_self=True), [1, 2, 1, 4, 2, 8]),
        ("fewer keys", separate_means([1] * 6, [1] * 2, values=VALUES[:2]), [1, 1.5, 1.5, 1.5, 1.5, 1.5]),
        ("more keys", separate_means([1] * 2, [1] * 6), [1, 1.5]),
    ]:
        with subtests.test(name):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_shared_queries_and_keys_are_rotated_once():
    class CountedRotary(Rotary):
        def rotate(self, x, positions):
            turned.append(x)
            return super().rotate(x, positions)

    turned = []
    tokens, groups = np.ones((1, 1, 6, 2), "float32"), row(GROUPS)
    attend_groups(tokens, None, column(VALUES), groups, groups, 2, causal=True, position=CountedRotary())
    assert len(turned) == 1


def test_padding_does_not_count_in_the_band():
    exists = np.array([[True, True, False, True, True, True]])
    groups = ops.convert_to_numpy(token_groups(row(GROUPS), 3, exists))[0, 0]
    assert groups[2] == NO_GROUP
    assert shared_means(groups, mask_self=False) == pytest.approx([1, 2, 0, 4.5, 9, 20])
    assert separate_means(groups, groups) == pytest.approx([1, 2, 0, 4.5, 9, 20])


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


@pytest.mark.parametrize("shared", first([False, True], 1))
def test_dropout_does_not_depend_on_the_slots_of_tokens(shared):
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, 1, 60, 2)).astype("float32")
    outputs = []
    for later in (2, 1):  # in group 1 they come before all the tokens of group 2
        groups = row([2] * 40 + [later] * 20)
        sides = (groups, groups) if shared else (groups, groups.copy())
        heads = query, None if shared else key, value
        outputs.append(attend_groups(*heads, *sides, 8, causal=True, dropout=Dropout(0.5, 3)).output[:, :, :40])
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=1e-6)
