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


def output_of(name, **arguments):
    subject = subjects.core_subject(name, SIZES, **arguments)
    return ops.convert_to_numpy(subject.function(*subject.arguments)[0])


def arrays(results):
    return [ops.convert_to_numpy(x) for x in keras.tree.flatten(results)]


def test_the_local_core_is_dense_attention_in_a_causal_window_with_or_without_grouped_keys():
    mask = definitions.window(24, 24, 8, True)
    np.testing.assert_allclose(output_of("local"), dense(*subjects.heads_of(SIZES), mask), atol=1e-5)
    sizes = subjects.Sizes(length=24, num_heads=4, head_dim=8, span=8)
    subject = subjects.core_subject("local, grouped", sizes)
    query, *keys = subjects.heads_of(sizes)
    expected = dense(query, *(x[:, [0, 0, 1, 1]] for x in keys), mask)
    np.testing.assert_allclose(ops.convert_to_numpy(subject.function(*subject.arguments)[0]), expected, atol=1e-5)


def test_the_core_of_successors_reads_the_value_after_each_earlier_token():
    sizes = subjects.Sizes(length=24, num_heads=2, head_dim=8, span=24)  # one cluster, which holds all
    query, _, value = subjects.heads_of(sizes)
    query = ops.convert_to_numpy(kmeans.normalize(query)) * 8**0.25  # their products are not divided
    subject = subjects.core_subject("successors", sizes)
    output = ops.convert_to_numpy(subject.function(*subject.arguments)[0])
    expected = dense(query, query, np.roll(value, -1, axis=2), np.tri(24, k=-1, dtype=bool))
    np.testing.assert_allclose(output[:, :, 1:], expected[:, :, 1:], atol=1e-5)
    assert not output[:, :, 0].any()


@pytest.mark.parametrize("name", ["strided", "fixed"])
def test_the_factorized_cores_are_dense_attention_of_two_kinds_of_heads(name):
    sizes = subjects.Sizes(length=300, num_heads=2, head_dim=8)
    near = {
        "strided": definitions.window(300, 300, 128, True),
        "fixed": definitions.local_blocks(300, 300, 128, 0, 0, True),
    }
    far = {
        "strided": definitions.strided(300, 300, 128, "far", True),
        "fixed": definitions.fixed(300, 300, 128, 8, 0, "far", True),
    }
    mask = np.stack([ops.convert_to_numpy(part[name]) for part in (near, far)])
    subject = subjects.core_subject(name, sizes)
    output = ops.convert_to_numpy(subject.function(*subject.arguments)[0])
    seeing = mask.any(-1)  # the first queries see no summary
    np.testing.assert_allclose(output[:, seeing], dense(*subjects.heads_of(sizes), mask)[:, seeing], atol=1e-5)
    assert not output[:, ~seeing].any()


def test_the_clustered_cores_are_dense_attention_if_every_query_is_a_cluster():
    expected = dense(*subjects.heads_of(SIZES), np.ones((24, 24), bool))
    for name in ("clustered", "improved clustered"):
        np.testing.assert_allclose(output_of(name), expected, atol=1e-5)


def test_the_cores_of_keras_and_of_torch_are_dense_causal_attention():
    heads = subjects.heads_of(SIZES)
    expected = dense(*heads, np.tri(24, dtype=bool))
    np.testing.assert_allclose(np.swapaxes(output_of("keras dense"), 1, 2), expected, atol=1e-5)
    step = steps.torch_step(heads, backward=True)
    if step is not None:
        np.testing.assert_allclose(step.run()[0].detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    first(
        ["local", "nearest", "all-attention", "successors", "lsh", "top_k", "nearest, separate keys", "clustered"], 1
    ),
)
def test_one_head_at_a_time_is_all_heads_at_once_with_the_same_gradients(name):
    at_once, in_turn = (
        arrays(steps.step_of(subjects.core_subject(name, SIZES, remat), MODE, backward=True).run())
        for remat in (False, True)
    )
    assert len(at_once) == 1 + {"nearest": 2, "successors": 2, "top_k": 2, "lsh": 2, "all-attention": 5}.get(name, 3)
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


@pytest.mark.large
def test_steps_on_jax_are_those_on_tensorflow(run_python):
    code = (
        "from tests.benchmarks.test_subjects import *\n"
        "for name, remat in (('local', False), ('nearest', True)):\n"
        "    step = steps.step_of(subjects.core_subject(name, SIZES, remat), MODE, backward=True)\n"
        "    print(*(float(np.abs(x).sum()) for x in arrays(step.run())))\n"
        "layer = subjects.layer_subject('nearest', SIZES, True)\n"
        "print(len(arrays(steps.step_of(layer, MODE, backward=True).run())))"
    )
    *lines, number = run_python(code, KERAS_BACKEND="jax").splitlines()
    for line, (name, remat) in zip(lines, (("local", False), ("nearest", True)), strict=True):
        here = arrays(steps.step_of(subjects.core_subject(name, SIZES, remat), MODE, backward=True).run())
        np.testing.assert_allclose([float(x) for x in line.split()], [np.abs(x).sum() for x in here], rtol=1e-4)
    assert int(number) == 2 + 6  # output, input, and kernels and biases of query, value and output
