"""The published routing leaks the future, as its own numbers show; ours reproduces the leak, or has none."""

import numpy as np
import pytest
from keras import ops

from tests.goldens import goldens_of, read_case
from tests.patterns.small_cases import attend_groups, attend_members
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.members import best_members

goldens = goldens_of("routing_transformer/causality_leak.npz")


@pytest.fixture(params=["n32_share1", "n32_share0"])
def case(request, goldens):
    return read_case(goldens, request.param)


def sides(arrays, settings, ending):
    """Return normalised queries and keys and the values of a sequence, or of that with another last token."""
    query, key = (kmeans.normalize(ops.convert_to_tensor(arrays[side + ending])) for side in "qk")
    return query, query if settings["share_qk"] else key, arrays["v" + ending]


def published(arrays, settings, ending):
    query, key, value = sides(arrays, settings, ending)
    members = [best_members(kmeans.scores(x, arrays["means"]), settings["w"]) for x in (query, key)]
    output, _ = attend_members(query, key, value, *members, causal="rank", extra_count=0.01)
    return np.asarray(output), members


def causal(arrays, settings, ending):
    query, key, value = sides(arrays, settings, ending)
    groups, shared = [kmeans.nearest(x, arrays["means"]) for x in (query, key)], settings["share_qk"]
    tokens = (query, None, value, groups[0], groups[0]) if shared else (query, key, value, *groups)
    return np.asarray(attend_groups(*tokens, settings["w"], causal=True, mask_self=shared).output)


def test_members_and_outputs_are_published_before_and_after_the_last_token_changes(case):
    settings, arrays = case
    output, members = published(arrays, settings, "")
    np.testing.assert_allclose(output, arrays["out"], atol=1e-5)
    for side, found in zip("qk", members, strict=True):
        np.testing.assert_array_equal(found.positions, arrays[f"idx_{side}"][..., 2])
    np.testing.assert_allclose(published(arrays, settings, "_pert")[0], arrays["out_pert"], atol=1e-5)


def test_the_published_selection_changes_earlier_outputs_and_ours_none(case):
    settings, arrays = case
    leak = np.abs(arrays["out"] - arrays["out_pert"])[:, :, :-1]
    assert leak.max() > 1e-3
    ours = np.abs(causal(arrays, settings, "") - causal(arrays, settings, "_pert"))
    assert ours[:, :, :-1].max() < 1e-6
    assert ours[:, :, -1].max() > 1e-3
