"""Masked softmax attention: empty rows, extreme scores, merging, dropout and spans, in every dtype."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.programs import differentiate
from tf_sparse_attention.ops.attend import Dropout, attend, attend_heads
from tf_sparse_attention.ops.span import closed_clip

NAMES = ("query", "key", "value")
DTYPES = ["bfloat16", "float16", "float32", "float64"]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float64"))


OPTIONS = [{}, {"span": np.full((2, 3), 0.5)}, {"return_log_sum_exp": True}, {"return_weights": True}]


@pytest.mark.parametrize(("dtype", "options"), list(zip(DTYPES, OPTIONS, strict=True)))
def test_a_query_without_keys_has_zero_output_and_gradient(dtype, options):
    mask = np.array([[True, True, False], [False, False, False]])
    inputs = {name: ops.cast(draw(n, 3, seed=n), dtype) for name, n in zip(NAMES, (2, 3, 3), strict=True)}

    def run(x):
        attended = attend(**x, mask=mask, **options)
        return (attended.output, *(x for x in (attended.weights, attended.log_sum_exp) if x is not None))

    (output, *rest), gradients = differentiate(run, inputs, ops.ones((2, 3), dtype=dtype))
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    for empty in (numbers(output)[1], numbers(gradients["query"])[1], numbers(gradients["value"])[2]):
        assert np.abs(empty).max() == 0
    assert np.abs(numbers(output)[0]).max() > 0
    for x in (output, *rest, *gradients.values()):
        assert np.isfinite(numbers(x)).all()
    if "return_weights" in options:
        assert np.abs(numbers(rest[0])[1]).max() == 0


@pytest.mark.parametrize("dtype", first(DTYPES, 1))
def test_huge_scores_give_the_value_of_the_best_key(dtype):
    query, key, value = (ops.cast(x, dtype) for x in ([[0.0]], [[0.0]] * 3, [[1.0], [2.0], [4.0]]))
    for signs, expected in (((-1, 0, 1), 4), ((1, 1, -1), 1.5), ((-1, -1, -1), 7 / 3), ((-1, 0, -1), 2)):
        for span in (None, np.ones((1, 3))):
            output = attend(query, key, value, bias=1e30 * np.array([signs]), span=span).output
            np.testing.assert_allclose(numbers(output), [[expected]], rtol=1e-2)


@pytest.mark.parametrize("dtype", first(DTYPES, 2))
def test_scores_are_computed_in_float32_at_least(dtype):
    # The products reach 256, where bfloat16 steps by 2 and float16 by 0.25; the inputs are exact in all dtypes.
    query, key = ops.cast([[16.0, 1.0]], dtype), ops.cast([[16.0, 0.0], [16.0, 0.125]], dtype)
    weights = attend(query, key, ops.ones((2, 1), dtype="float64"), return_weights=True).weights
    np.testing.assert_allclose(numbers(weights), [[1 / (1 + np.exp(0.125)), 1 / (1 + np.exp(-0.125))]], rtol=1e-5)


@pytest.mark.parametrize(("heads", "masked"), [((), False), ((2,), True)], ids=["one head", "grouped heads"])
def test_gradients_of_output_and_log_sum_exp_are_those_of_the_weights(heads, masked):
    inputs = {"query": draw(3, *heads, 5, 4), "key": draw(3, 6, 4, seed=1), "value": draw(3, 6, 2, seed=2)}
    mask = draw(3, *heads, 5, 6, seed=3) > -0.5 if masked else None
    if masked:
        mask[0, ..., 1, :] = False

    def run(return_weights):
        def both(x):
            given = {"mask": mask, "return_log_sum_exp": True, "return_weights": return_weights}
            attended = attend(x["query"], x["key"], x["value"], soft_cap=2.0, **given)
            # What stands for the sum of an empty row is no number to compute with.
            sums = ops.maximum(attended.log_sum_exp, -100.0)
            return (ops.concatenate([attended.output, sums[..., None]], axis=-1),)

        return differentiate(both, inputs, draw(3, *heads, 5, 3, seed=4))

    (expected,), of_weights = run(return_weights=True)
    (actual,), gradients = run(return_weights=False)
    np.testing.assert_allclose(numbers(actual), numbers(expected), rtol=0, atol=1e-14)
    for name in inputs:
        np.testing.assert_allclose(numbers(gradients[name]), numbers(of_weights[name]), rtol=0, atol=1e-13)
        assert np.abs(numbers(gradients[name])).max() > 0.01


def test_in_half_precision_a_query_that_sees_one_key_has_no_gradient():
    # Errors of the products with the values cancel, as they do in a softmax by itself.
    inputs = {name: ops.cast(3 + draw(8, 32, seed=seed), "bfloat16") for seed, name in enumerate(NAMES)}

    def run(x):
        return (attend(**x, mask=np.tri(8, dtype=bool), return_log_sum_exp=True).output,)

    _, gradients = differentiate(run, inputs, ops.cast(draw(8, 32, seed=3), "bfloat16"))
    sizes = np.abs(numbers(gradients["query"])).max(axis=-1)
    assert sizes[0] < 1e-5  # some processors sum products in another order
    assert sizes[1:].max() > 1


def test_a_seed_repeats_the_dropout_and_what_is_kept_is_scaled_up():
    # With the unit matrix as values the output is the weights that were used.
    query, key, value = draw(4, 50, 8), draw(4, 60, 8, seed=1), np.tile(np.eye(60), (4, 1, 1))
    whole = numbers(attend(query, key, value).output)
    first, again, other = (
        attend(query, key, value, dropout=Dropout(0.25, seed), return_weights=True) for seed in (1, 1, 2)
    )
    used = numbers(first.output)
    np.testing.assert_array_equal(used, numbers(again.output))
    assert np.abs(used - numbers(other.output)).max() > 0
    there = used > 0
    assert abs(there.mean() - 0.75) < 0.02  # five standard deviations of 12,000 draws
    np.testing.assert_allclose(used[there], whole[there] / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(numbers(first.weights), whole)  # as in Keras, before dropout


def test_dropout_applies_to_value_biases():
    # Two keys of weight 1/2 each: what is kept counts 1, and both come and go.
    query, key, value = np.zeros((1, 1, 200, 1)), np.zeros((1, 1, 2, 1)), np.array([[[[1.0], [10.0]]]])
    options = {"dropout": Dropout(0.5, 1), "value_bias": lambda weights: 100 * weights[..., :1]}
    output = numbers(attend(query, key, value, **options).output)
    assert {round(x) for x in output.ravel().tolist()} == {0, 10, 101, 111}


def test_heads_that_share_keys_drop_different_pairs():
    query, key, value = draw(1, 4, 1, 8, 4), draw(1, 2, 1, 9, 4, seed=1), np.tile(np.eye(9), (1, 2, 1, 1, 1))
    queries, keys = (np.tile(np.arange(n, dtype="int32"), (1, 4, 1, 1)) for n in (8, 9))

    def used(key, value, keys):
        dropout = Dropout(0.5, 7).with_positions(queries, keys)
        return numbers(attend_heads(query, key, value, dropout=dropout).output)

    there = used(key, value, keys) > 0
    assert len({head.tobytes() for head in there[0]}) == 4
    moved, order = [np.copy(x) for x in (key, value, keys)], np.random.default_rng(0).permutation(9)
    for x in moved:  # of the second group
        half = x.shape[1] // 2
        x[:, half:] = x[:, half:, :, order]
    np.testing.assert_allclose(used(*moved), used(key, value, keys), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_are_finite_where_the_span_is_zero(dtype):
    inputs = {name: ops.cast(draw(4, 3, seed=seed), dtype) for seed, name in enumerate(NAMES)}
    inputs["span"] = np.array([[1, 0.5, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], "float32")
    (output,), gradients = differentiate(lambda x: (attend(**x).output,), inputs, ops.ones((4, 3), dtype=dtype))
    for x in (output, *gradients.values()):
        assert np.isfinite(numbers(x)).all()
    assert np.abs(numbers(output)[2]).max() == 0
    assert np.abs(numbers(gradients["span"])[0]).min() > 0  # a span may grow again from zero


def test_a_high_score_with_a_span_of_zero_does_not_underflow_other_weights():
    inputs = {"query": np.ones((1, 1), "float32"), "span": np.array([[0, 1, 1]], "float32")}
    key, value = np.array([[200], [1], [1]], "float32"), np.array([[8], [2], [4]], "float32")
    run = functools.partial(attend, key=key, value=value)
    (output,), gradients = differentiate(lambda x: (run(**x).output,), inputs, np.ones((1, 1), "float32"))
    np.testing.assert_allclose(numbers(output), [[3]], rtol=1e-6)
    for gradient in gradients.values():
        assert np.isfinite(numbers(gradient)).all()


def test_the_gradient_passes_at_both_corners():
    # At z = 0 the nearest key and the first beyond the ramp lie exactly on the corners.
    inputs = {"x": np.float32([-0.5, 0, 0.5, 1, 1.5])}
    (clipped,), gradients = differentiate(lambda x: [closed_clip(x["x"])], inputs, np.ones(5, "float32"))
    np.testing.assert_array_equal(numbers(clipped), [0, 0, 0.5, 1, 1])
    np.testing.assert_array_equal(numbers(gradients["x"]), [0, 1, 1, 1, 0])
