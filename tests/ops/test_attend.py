"""Masked softmax attention: empty rows, extreme scores and merging, in every dtype."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.draws import first
from tests.ops.attend_numbers import draw, numbers, softmax
from tests.ops.jax_worker import run_check
from tests.programs import differentiate
from tf_sparse_attention.ops.attend import attend, combine

DTYPES = ["bfloat16", "float16", "float32", "float64"]
# What the dtype of the result can tell apart at values up to about 4.
PRECISION = {"bfloat16": 5e-2, "float16": 5e-3, "float32": 2e-6, "float64": 1e-14}


def test_attention_is_a_softmax_of_the_scores_over_the_values():
    # Scores log 1, log 2, log 5 with weights 1/8, 2/8, 5/8.
    output = attend(np.ones((1, 1)), np.log([[1.0], [2.0], [5.0]]), np.array([[8.0], [16.0], [32.0]])).output
    np.testing.assert_allclose(numbers(output), [[1 + 4 + 20]], rtol=1e-12)


def test_the_mask_and_the_bias_change_the_weights():
    zeros, value = np.zeros((3, 1)), np.array([[8.0], [16.0], [32.0]])
    mask = np.array([[True, True, False], [False, False, True], [True, True, True]])
    bias = np.log([[1.0, 3.0, 9.0]])
    output = attend(zeros, zeros, value, mask=mask, bias=bias).output
    np.testing.assert_allclose(numbers(output), [[14], [32], [(8 + 48 + 288) / 13]], rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("bfloat16", {}),
        ("float16", {"span": True}),
        ("float32", {"return_log_sum_exp": True}),
        ("float64", {"return_weights": True}),
    ],
)
def test_a_query_without_keys_has_zero_output_and_gradient(dtype, options):
    mask = np.array([[True, True, False], [False, False, False]])
    if "span" in options:
        options = {"span": np.full((2, 3), 0.5)}
    inputs = {name: ops.cast(draw(n, 3, seed=n), dtype) for name, n in (("query", 2), ("key", 3), ("value", 3))}

    def run(x):
        attended = attend(x["query"], x["key"], x["value"], mask=mask, **options)
        return (attended.output, *(x for x in (attended.weights, attended.log_sum_exp) if x is not None))

    (output, *rest), gradients = differentiate(run, inputs, ops.ones((2, 3), dtype=dtype))
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert np.abs(numbers(output)[1]).max() == 0
    assert np.abs(numbers(output)[0]).max() > 0
    assert np.abs(numbers(gradients["query"])[1]).max() == 0
    assert np.abs(numbers(gradients["value"])[2]).max() == 0
    for x in (output, *rest, *gradients.values()):
        assert np.isfinite(numbers(x)).all()
    if "return_weights" in options:
        assert np.abs(numbers(rest[0])[1]).max() == 0


def test_the_gradient_of_the_bias_is_zero_in_an_empty_row():
    mask, query, key = np.array([[False, False], [True, True]]), draw(2, 3), draw(2, 3, seed=1)
    for dtype in ("bfloat16", "float64"):

        def run(x, dtype=dtype):
            return (attend(query, key, ops.cast(key, dtype), mask=mask, bias=x["bias"]).output,)

        _, gradients = differentiate(run, {"bias": draw(2, 2, seed=2).astype("float32")}, ops.ones((2, 3), dtype=dtype))
        assert np.abs(numbers(gradients["bias"])[0]).max() == 0
        assert np.abs(numbers(gradients["bias"])[1]).min() > 0


@pytest.mark.parametrize("dtype", first(DTYPES, 1))
def test_huge_scores_give_the_value_of_the_best_key(dtype):
    value = ops.cast([[1.0], [2.0], [4.0]], dtype)
    zeros = ops.zeros((1, 1), dtype=dtype), ops.zeros((3, 1), dtype=dtype)
    for bias, expected in (
        ([[-1e30, 0, 1e30]], 4),
        ([[1e30, 1e30, -1e30]], 1.5),
        ([[-1e30, -1e30, -1e30]], 7 / 3),
        ([[-1e30, 0, -1e30]], 2),
    ):
        for span in (None, np.ones((1, 3))):
            output = attend(*zeros, value, bias=np.array(bias), span=span).output
            np.testing.assert_allclose(numbers(output), [[expected]], rtol=1e-2)


@pytest.mark.parametrize("dtype", first(DTYPES, 2))
def test_scores_are_computed_in_float32_at_least(dtype):
    # The products reach 256, where bfloat16 steps by 2 and float16 by 0.25; the inputs are exact in all dtypes.
    query, key = ops.cast([[16.0, 1.0]], dtype), ops.cast([[16.0, 0.0], [16.0, 0.125]], dtype)
    weights = attend(query, key, ops.ones((2, 1), dtype="float64"), return_weights=True).weights
    np.testing.assert_allclose(numbers(weights), softmax(np.array([[256, 256.125]]), np.ones((1, 2))), rtol=1e-5)


def test_parts_are_combined_into_attention_over_their_union_with_its_gradients():
    inputs = {name: draw(6, 3, seed=seed) for seed, name in enumerate(("query", "key", "value"))}
    mask, cotangent = draw(6, 6, seed=4) > -0.5, draw(6, 3, seed=5)
    mask[0] = False  # a row that is empty in all parts
    mask[1, :2] = False  # and one that is in the first part alone

    def whole(x):
        return (attend(x["query"], x["key"], x["value"], mask=mask).output,)

    def joined(x):
        parts = [
            attend(x["query"], x["key"][cut], x["value"][cut], mask=mask[:, cut], return_log_sum_exp=True)
            for cut in (slice(0, 2), slice(2, 3), slice(3, 6))
        ]
        return (combine([part.output for part in parts], [part.log_sum_exp for part in parts]),)

    ((expected,), of_whole), ((found,), of_parts) = (differentiate(run, inputs, cotangent) for run in (whole, joined))
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=0, atol=1e-13)
    for name in inputs:
        np.testing.assert_allclose(numbers(of_parts[name]), numbers(of_whole[name]), rtol=0, atol=1e-13)


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


def test_gradients_are_the_same_in_every_program_of_jax(run_jax):
    differences = run_check(run_jax, "gradients_in_programs")
    assert set(differences) == {"jit", "remat"}
    assert max(differences.values()) < 1e-5  # of numbers up to about 5


def test_in_half_precision_a_query_that_sees_one_key_has_no_gradient():
    # Errors of the products with the values cancel, as they do in a softmax by itself.
    inputs = {
        name: ops.cast(3 + draw(8, 32, seed=seed), "bfloat16") for seed, name in enumerate(("query", "key", "value"))
    }
    mask = np.tri(8, dtype=bool)

    def run(x):
        return (attend(x["query"], x["key"], x["value"], mask=mask, return_log_sum_exp=True).output,)

    _, gradients = differentiate(run, inputs, ops.cast(draw(8, 32, seed=3), "bfloat16"))
    assert np.abs(numbers(gradients["query"])[0]).max() == 0
    assert np.abs(numbers(gradients["query"])[1:]).max() > 0
