"""Bands of groups at every offset of blocks, and members of clusters on cases that a reader can compute."""

import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.oracle.definitions import bands
from tests.patterns.small_cases import attend_groups
from tf_sparse_attention.ops.members import best_members


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


def chosen(scores, size, mask=None):
    """Return positions and validity of one head, for scores given cluster by cluster."""
    scores = np.array(scores, "float32").T[None, None]
    found = best_members(scores, size, None if mask is None else np.array([mask]))
    valid = None if found.valid is None else ops.convert_to_numpy(found.valid)[0, 0].tolist()
    return ops.convert_to_numpy(found.positions)[0, 0].tolist(), valid


def test_members_are_the_best_unmasked_tokens_by_ascending_position():
    assert chosen([[5, 9, 1, 7], [0, 1, 2, 3]], 2) == ([[1, 3], [2, 3]], None)
    assert chosen([[1, 1, 1, 1], [0, 2, 2, 2]], 2) == ([[0, 1], [1, 2]], None)  # of equal scores the first tokens
    assert chosen([[3, 1, 2]], 8) == ([[0, 1, 2]], None)
    assert chosen([[9, 1, 8, 2]], 2, [False, True, False, True]) == ([[1, 3]], [[True, True]])
    positions, valid = chosen([[6, 5, 4, 3, 2, 1]], 4, [True, False, True, False, True, False])
    assert (positions[0][:3], valid) == ([0, 2, 4], [[True, True, True, False]])
