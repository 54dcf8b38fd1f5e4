"""The soft span: a factor in the softmax, with finite gradients where it is zero."""

import numpy as np
import pytest
from keras import ops

from tests.ops.attend_numbers import draw, numbers, softmax
from tests.programs import differentiate
from tf_sparse_attention.ops.attend import attend


def test_the_span_equals_its_formula_with_a_mask():
    query, key, value = draw(2, 5, 4), draw(2, 7, 4, seed=1), draw(2, 7, 3, seed=2)
    span = np.clip(draw(5, 7, seed=3), 0, 1)
    mask = draw(2, 5, 7, seed=4) > 0
    output = attend(query, key, value, mask=mask, span=span).output
    expected = softmax(query @ key.swapaxes(1, 2), mask * span) @ value
    np.testing.assert_allclose(numbers(output), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_are_finite_where_the_span_is_zero(dtype):
    inputs = {name: ops.cast(draw(4, 3, seed=seed), dtype) for seed, name in enumerate(("query", "key", "value"))}
    span = np.array([[1, 0.5, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], "float32")

    def run(x):
        return (attend(x["query"], x["key"], x["value"], span=x["span"]).output,)

    (output,), gradients = differentiate(run, inputs | {"span": span}, ops.ones((4, 3), dtype=dtype))
    for x in (output, *gradients.values()):
        assert np.isfinite(numbers(x)).all()
    assert np.abs(numbers(output)[2]).max() == 0
    assert np.abs(numbers(gradients["span"])[0]).min() > 0  # a span may grow again from zero


def test_the_gradient_of_the_span_equals_finite_differences():
    query, key, value, cotangent = (draw(3, 4, seed=seed) for seed in range(4))
    span = np.random.default_rng(5).random((3, 3))
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)

    def total(span):
        return ((softmax(query @ key.T, mask * span) @ value) * cotangent).sum()

    def run(x):
        return (attend(query, key, value, mask=mask, span=x["span"]).output,)

    _, gradients = differentiate(run, {"span": span}, cotangent)
    for place in np.ndindex(3, 3):
        shift = np.zeros((3, 3))
        shift[place] = 1e-6
        slope = (total(span + shift) - total(span - shift)) / 2e-6
        np.testing.assert_allclose(numbers(gradients["span"])[place], slope, rtol=0, atol=1e-8)


def test_a_high_score_with_a_span_of_zero_does_not_underflow_other_weights():
    inputs = {"query": np.ones((1, 1), "float32"), "span": np.array([[0, 1, 1]], "float32")}
    key, value = np.array([[200], [1], [1]], "float32"), np.array([[8], [2], [4]], "float32")

    def run(x):
        return (attend(x["query"], key, value, span=x["span"]).output,)

    (output,), gradients = differentiate(run, inputs, np.ones((1, 1), "float32"))
    np.testing.assert_allclose(numbers(output), [[3]], rtol=1e-6)
    for gradient in gradients.values():
        assert np.isfinite(numbers(gradient)).all()
