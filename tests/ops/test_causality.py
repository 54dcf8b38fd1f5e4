"""Later tokens never change earlier outputs, and no row depends on its batch-mates or on its padding."""

import numpy as np
import pytest
from keras import ops

from tests.ops.compare import differentiate
from tests.ops.plans import Plan, draw, sparse
from tf_sparse_attention.ops import kmeans
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.local import local_attention
from tf_sparse_attention.ops.routing import groups_of, nearest_attention
from tf_sparse_attention.ops.routing_separate import separate_attention

LENGTH, CUT, HEADS, CLUSTERS = 90, 50, 2, 4
CENTROIDS = np.random.default_rng(0).normal(size=(HEADS, CLUSTERS, 6)).astype("float32")
DROPOUT = [None, Dropout(0.3, 5)]


def local(query, key, value, dropout=None):
    return local_attention(query, key, value, window=20, causal=True, dropout=dropout)[0]


def blocks(query, key, value, dropout=None):
    return local_attention(query, key, value, block_size=16, num_blocks_before=2, causal=True, dropout=dropout)[0]


def nearest(query, key, value, dropout=None):
    query = kmeans.normalize(query)
    groups = groups_of(kmeans.nearest(query, CENTROIDS), CLUSTERS)
    return nearest_attention(query, value, groups, 8, dropout=dropout)[0]


def separate(query, key, value, dropout=None):
    query, key = kmeans.normalize(query), kmeans.normalize(key)
    groups = (groups_of(kmeans.nearest(x, CENTROIDS), CLUSTERS) for x in (query, key))
    return separate_attention(query, key, value, *groups, 8, dropout=dropout)[0]


def vectors(seed=0, batch=2):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(batch, HEADS, LENGTH, 6)).astype("float32") for name in ("query", "key", "value")}


def with_another_future(x):
    """Returns the vectors with all tokens from `CUT` on replaced: others join other clusters and blocks."""
    other = vectors(seed=1)
    return {name: np.concatenate([x[name][:, :, :CUT], 3 * other[name][:, :, CUT:]], axis=2) for name in x}


def numbers(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("dropout", DROPOUT, ids=["whole", "dropout"])
@pytest.mark.parametrize("attention", [local, blocks])
def test_later_tokens_change_no_bit_of_a_local_output(attention, dropout):
    x = vectors()
    before, after = (numbers(attention(**y, dropout=dropout)) for y in (x, with_another_future(x)))
    np.testing.assert_array_equal(after[:, :, :CUT], before[:, :, :CUT])
    assert np.abs(after[:, :, CUT:] - before[:, :, CUT:]).max() > 0.1


@pytest.mark.parametrize("dropout", DROPOUT, ids=["whole", "dropout"])
@pytest.mark.parametrize("attention", [nearest, separate])
def test_later_tokens_change_a_routed_output_by_rounding_alone(attention, dropout):
    x = vectors()
    before, after = (numbers(attention(**y, dropout=dropout)) for y in (x, with_another_future(x)))
    np.testing.assert_allclose(after[:, :, :CUT], before[:, :, :CUT], rtol=0, atol=2e-6)
    assert np.abs(after[:, :, CUT:] - before[:, :, CUT:]).max() > 0.1


@pytest.mark.parametrize("attention", [local, blocks, nearest, separate])
def test_the_gradient_of_an_earlier_output_by_a_later_token_is_exactly_zero(attention):
    _, gradients = differentiate(
        lambda x: (attention(**x)[:, :, :CUT],), vectors(), np.ones((2, HEADS, CUT, 6), "float32")
    )
    for name, gradient in gradients.items():
        assert np.abs(numbers(gradient)[:, :, CUT:]).max() == 0, name
    assert np.abs(numbers(gradients["value"])[:, :, :CUT]).max() > 0


@pytest.mark.parametrize("attention", [local, blocks, nearest, separate])
def test_a_row_does_not_depend_on_its_batch_mates(attention):
    x = vectors(batch=3)
    together = numbers(attention(**x))
    alone = numbers(attention(**{name: value[1:2] for name, value in x.items()}))
    # A product of matrices may add up in another order for another number of them.
    np.testing.assert_allclose(together[1:2], alone, rtol=0, atol=1e-6)


PADDED = [
    Plan("local", window=9, key_mask=True, causal=False),
    Plan("local", block_size=7, key_mask=True, causal=False),
    Plan("nearest", shared=True, key_mask=True, causal=False, cluster_size=4),
    Plan("nearest", key_mask=True, cluster_size=4, mask_self=True),
    Plan("top_k", key_mask=True, causal=None, cluster_size=4),
    Plan("top_k", shared=True, key_mask=True, causal="position", cluster_size=40),
]


@pytest.mark.parametrize("plan", PADDED, ids=lambda plan: plan.op)
def test_what_stands_in_the_padding_changes_nothing(plan):
    plan = plan._replace(num_queries=30, num_keys=30)
    inputs, masks, _ = draw(plan, seed=0)
    exists = np.arange(30) < np.array([[30], [17]])
    masks |= {"query_mask": exists, "key_mask": exists}
    others, other_masks, _ = draw(plan, seed=1)
    swapped = {name: np.where(exists[:, None, :, None], x, 9 * others[name]) for name, x in inputs.items()}
    for name in masks:
        if name.endswith(("clusters", "scores")):
            there = np.expand_dims(exists, [1, *range(3, masks[name].ndim)])
            other_masks[name] = np.where(there, masks[name], other_masks[name])
    other_masks |= {"query_mask": exists, "key_mask": exists}
    before, after = (numbers(sparse(plan, *x)[0]) for x in ((inputs, masks), (swapped, other_masks)))
    there = np.broadcast_to(exists[:, None, :, None], before.shape)
    np.testing.assert_allclose(after[there], before[there], rtol=0, atol=1e-6)


# Blocks lie on absolute positions, and a cluster of top_k is chosen over the whole row.
PACKED = [PADDED[0], *PADDED[2:4]]


@pytest.mark.parametrize("plan", PACKED, ids=lambda plan: plan.op)
def test_packed_documents_equal_separate_ones(plan):
    plan = plan._replace(num_queries=30, num_keys=30, key_mask=False, segments=True)
    inputs, masks, _ = draw(plan, seed=0)
    segments = np.where(np.arange(30) < 13, 77, -8)[None].repeat(2, 0).astype("int32")
    packed = numbers(sparse(plan, inputs, masks | {"query_segments": segments, "key_segments": segments})[0])
    for part in (slice(0, 13), slice(13, 30)):
        size = part.stop - part.start
        alone = plan._replace(num_queries=size, num_keys=size, segments=False)
        cut = {name: x[:, :, part] for name, x in masks.items() if name.endswith("clusters")}
        separate = numbers(sparse(alone, {name: x[:, :, part] for name, x in inputs.items()}, cut)[0])
        np.testing.assert_allclose(packed[:, :, part], separate, rtol=0, atol=1e-6)
