"""What the benchmark measures computes what it says, in every way it is measured."""

import keras
import numpy as np
import pytest
from keras import ops

from benchmarks import steps, subjects, worker
from tests.draws import first
from tests.oracle import definitions
from tf_sparse_attention.ops import kmeans

SIZES = subjects.Sizes(length=24, num_heads=2, head_dim=8, span=8)
MODE = worker.MODES[keras.backend.backend()][0]


def dense(query, key, value, mask):
    scores = np.where(mask, query @ np.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5, -1e9)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value


def outputs_of(name, sizes=SIZES):
    """Return queries, keys and values of a subject, and its output."""
    subject = subjects.core_subject(name, sizes)
    return subjects.heads_of(sizes), ops.convert_to_numpy(subject.function(*subject.arguments)[0])


def arrays(results):
    return [ops.convert_to_numpy(x) for x in keras.tree.flatten(results)]


OF_300 = subjects.Sizes(length=300, num_heads=2, head_dim=8)
GROUPED = subjects.Sizes(length=24, num_heads=4, head_dim=8, span=8)
STRIDED = definitions.window(300, 300, 128, True), definitions.strided(300, 300, 128, "far", True)
FIXED = definitions.local_blocks(300, 300, 128, 0, 0, True), definitions.fixed(300, 300, 128, 8, 0, "far", True)
EVERYTHING = np.ones((24, 24), bool)  # every query is a cluster


@pytest.mark.parametrize(
    ("name", "sizes", "mask"),
    [
        ("local", SIZES, definitions.window(24, 24, 8, True)),
        ("local, grouped", GROUPED, definitions.window(24, 24, 8, True)),
        ("strided", OF_300, np.stack(STRIDED)),
        ("fixed", OF_300, np.stack(FIXED)),
        ("clustered", SIZES, EVERYTHING),
        ("improved clustered", SIZES, EVERYTHING),
    ],
)
def test_a_core_is_dense_attention_under_its_mask(name, sizes, mask):
    (query, *keys), output = outputs_of(name, sizes)
    if name == "local, grouped":
        keys = [x[:, [0, 0, 1, 1]] for x in keys]
    seeing = np.broadcast_to(mask.any(-1), output.shape[1:3])  # the first queries see no summary
    np.testing.assert_allclose(output[:, seeing], dense(query, *keys, mask)[:, seeing], atol=1e-5)
    assert not output[:, ~seeing].any()


def test_the_core_of_successors_reads_the_value_after_each_earlier_token():
    sizes = subjects.Sizes(length=24, num_heads=2, head_dim=8, span=24)  # one cluster, which holds all
    (query, _, value), output = outputs_of("successors", sizes)
    query = ops.convert_to_numpy(kmeans.normalize(query)) * 8**0.25  # their products are not divided
    expected = dense(query, query, np.roll(value, -1, axis=2), np.tri(24, k=-1, dtype=bool))
    np.testing.assert_allclose(output[:, :, 1:], expected[:, :, 1:], atol=1e-5)
    assert not output[:, :, 0].any()


def test_the_cores_of_keras_and_of_torch_are_dense_causal_attention():
    heads, output = outputs_of("keras dense")
    expected = dense(*heads, np.tri(24, dtype=bool))
    np.testing.assert_allclose(np.swapaxes(output, 1, 2), expected, atol=1e-5)
    step = steps.torch_step(heads, backward=True)
    if step is not None:
        np.testing.assert_allclose(step.run()[0].detach().numpy(), expected, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", first(["local", "nearest", "all-attention", "lsh", "clustered"], 1))
def test_one_head_at_a_time_is_all_heads_at_once_with_the_same_gradients(name):
    at_once, in_turn = (
        arrays(steps.step_of(subjects.core_subject(name, SIZES, remat), MODE, backward=True).run())
        for remat in (False, True)
    )
    assert len(at_once) == 1 + {"nearest": 2, "lsh": 2, "all-attention": 5}.get(name, 3)
    for expected, found in zip(at_once, in_turn, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("remat", [True, False])
def test_a_whole_layer_gives_a_gradient_of_its_input_and_of_every_weight(remat):
    subject = subjects.layer_subject("nearest", SIZES, remat)
    output, *gradients = arrays(steps.step_of(subject, MODE, backward=True).run())
    assert output.shape == (1, 24, 16)
    assert [g.shape for g in gradients[1:]] == [tuple(v.shape) for v in subject.variables]
    assert all(np.abs(g).max() > 0 for g in gradients)
