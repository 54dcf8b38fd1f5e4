"""Later tokens never change earlier outputs, and no row depends on its batch-mates or on its padding."""

import numpy as np
import pytest
from keras import ops

from tests.ops.causal_forms import DROPOUT, FORMS, look_ahead_of_all, vectors
from tests.ops.plans import Plan, draw, sparse
from tf_sparse_attention.ops.images import Image

BACKENDS = ["tensorflow", "jax"]
every_form = pytest.mark.parametrize("form", [f"{name}_{kind}" for name in FORMS for kind in DROPOUT])


@pytest.fixture(scope="module")
def found(on_jax):
    """What later tokens do to earlier outputs, by backend and form."""
    return {"tensorflow": look_ahead_of_all(), "jax": on_jax["causality"]}


def numbers(x):
    return ops.convert_to_numpy(x)


@pytest.mark.parametrize("backend", BACKENDS)
@every_form
def test_later_tokens_never_change_an_earlier_output(found, backend, form):
    seen = found[backend][form]
    # Not a bit where sums are made in a fixed order; routed tokens move to other places of other blocks.
    assert seen["earlier"] <= (0 if form.startswith(("local", "blocks", "strided", "fixed")) else 2e-6)
    assert seen["later"] > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
@every_form
def test_the_gradient_of_an_earlier_output_by_a_later_token_is_exactly_zero(found, backend, form):
    assert found[backend][form]["slope_later"] == 0
    assert found[backend][form]["slope_earlier"] > 0.1


@pytest.mark.parametrize("name", FORMS)
def test_a_row_does_not_depend_on_its_batch_mates(name):
    attention = FORMS[name]
    x = vectors(batch=3)
    together = numbers(attention(**x))
    alone = numbers(attention(**{name: value[1:2] for name, value in x.items()}))
    # A product of matrices may add up in another order for another number of them.
    np.testing.assert_allclose(together[1:2], alone, rtol=0, atol=1e-6)


PADDED = [
    Plan("local", window=9, key_mask=True, causal=False),
    Plan("local", block_size=7, key_mask=True, causal=False),
    Plan("local_2d", image=Image(5, (2, 2)), before=(1, 1), after=(1, 1), key_mask=True, causal=False),
    Plan("strided", stride=4, key_mask=True, causal=False),
    Plan("fixed", block_size=4, key_mask=True, causal=False),
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


# Blocks lie on absolute positions, local ones as those of fixed attention, and a cluster of top_k is chosen over the
# whole row.
PACKED = [plan for plan in PADDED if plan.window is not None or plan.op in ("strided", "nearest")]


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


def test_a_row_of_top_k_does_not_depend_on_its_batch_mates():
    plan = Plan("top_k", batch=3, num_queries=30, num_keys=30, cluster_size=8, causal=None)
    inputs, masks, _ = draw(plan, seed=0)
    together = numbers(sparse(plan, inputs, masks)[0])
    one = [{name: x[1:2] for name, x in part.items()} for part in (inputs, masks)]
    alone = numbers(sparse(plan._replace(batch=1), *one)[0])
    np.testing.assert_allclose(together[1:2], alone, rtol=0, atol=1e-6)
