"""Masked softmax attention: empty rows, extreme scores, merging, dropout and spans, in every dtype."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from tests.draws import first
from tests.ops.attend_numbers import draw, numbers, softmax
from tests.ops.jax_worker import run_check
from tests.programs import differentiate
from tf_sparse_attention.ops.attend import Dropout, attend, attend_heads, combine, query_key_products
from tf_sparse_attention.ops.positions import Distances
from tf_sparse_attention.ops.span import Span, closed_clip, needed_window

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
    attended = attend(
        np.zeros((1, 1, 200, 1)),
        np.zeros((1, 1, 2, 1)),
        np.array([1.0, 10.0]).reshape(1, 1, 2, 1),
        dropout=Dropout(0.5, 1),
        value_bias=lambda weights: 100 * weights[..., :1],
    )
    seen = {round(x) for x in numbers(attended.output).ravel().tolist()}
    assert seen == {0, 10, 101, 111}


def test_dropout_by_position_does_not_depend_on_slots():
    query, key, value = draw(2, 3, 8, 4), draw(2, 3, 9, 4, seed=1), np.tile(np.eye(9), (2, 3, 1, 1))
    queries, keys = np.tile(np.arange(8, dtype="int32"), (2, 3, 1)), np.tile(np.arange(9, dtype="int32"), (2, 3, 1))
    order, others = np.random.default_rng(0).permutation(8), np.random.default_rng(1).permutation(9)
    dropout = Dropout(0.5, 7)
    used = numbers(attend(query, key, value, dropout=dropout.with_positions(queries, keys)).output)
    moved = attend(
        query[:, :, order],
        key[:, :, others],
        value[:, :, others],
        dropout=dropout.with_positions(queries[..., order], keys[..., others]),
    )
    np.testing.assert_allclose(numbers(moved.output), used[:, :, order], rtol=1e-12)
    whole = numbers(attend(query, key, value).output)
    there = used > 0
    np.testing.assert_allclose(used[there], 2 * whole[there], rtol=1e-6)
    assert len({tuple(row) for row in there.reshape(-1, 9)}) > 40  # rows, heads and batch entries differ


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


@pytest.mark.parametrize(("heads", "number", "jit_compile"), [((), 3, False), ((2,), 1, True), ((2,), 5, False)])
def test_query_key_products_and_gradients_equal_their_definition(heads, number, jit_compile):
    tf = pytest.importorskip("tensorflow")
    draw = np.random.default_rng(0).normal
    rows, keys, cotangent = (draw(size=(2, 3, *sizes)) for sizes in ((*heads, number, 4), (6, 4), (*heads, number, 6)))
    run = tf.function(differentiate, jit_compile=jit_compile)
    (actual,), gradient = run(lambda x: (query_key_products(**x),), {"rows": rows, "keys": keys}, cotangent)
    shared = keys[:, :, None] if heads else keys
    of_keys = np.einsum("...ts,...th->...sh", cotangent, rows)
    found = actual, gradient["rows"], gradient["keys"]
    expected = rows @ np.swapaxes(shared, -1, -2), cotangent @ shared, of_keys.sum(2) if heads else of_keys
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), other, rtol=0, atol=1e-12)


def span(*fractions, **options):
    return Span(keras.ops.convert_to_tensor(np.float32(fractions)), **options)


def test_a_span_worked_by_hand():
    # z L = 2, R = 4: full up to distance 2, then 3/4, 2/4, 1/4, 0.
    offsets = -np.arange(8)[None, :]
    share = numbers(span(0.25, window=8, ramp=4).factor(Distances(offsets=offsets)))
    np.testing.assert_allclose(share, [[[[1, 1, 1, 0.75, 0.5, 0.25, 0, 0]]]])


def test_each_head_has_its_own_span_on_both_sides():
    seen = numbers(span(0, 0.5, window=4, ramp=1).dense_mask(4, 6))
    apart = abs(np.arange(4)[:, None] - np.arange(6)[None, :])
    np.testing.assert_array_equal(seen, [apart < 1, apart < 3])


def test_the_gradient_passes_at_both_corners():
    # At z = 0 the nearest key and the first beyond the ramp lie exactly on the corners.
    inputs = {"x": np.float32([-0.5, 0, 0.5, 1, 1.5])}
    (clipped,), gradients = differentiate(lambda x: [closed_clip(x["x"])], inputs, np.ones(5, "float32"))
    np.testing.assert_array_equal(numbers(clipped), [0, 0, 0.5, 1, 1])
    np.testing.assert_array_equal(numbers(gradients["x"]), [0, 1, 1, 1, 0])


@given(
    fraction=st.floats(0, 1, width=32),
    window=st.integers(1, 40),
    ramp=st.integers(1, 20),
    sizes=st.integers(1, 20),
    first=st.integers(0, 1),
)
def test_the_needed_window_holds_every_key_that_counts(fraction, window, ramp, sizes, first):
    needed = needed_window(fraction, window, ramp, num_sizes=sizes)
    distances = np.arange(first, window + first)
    share = numbers(span(fraction, window=window, ramp=ramp, first=first).factor(Distances(offsets=-distances[None])))
    assert 1 <= needed <= window
    assert not share[..., needed:].any()
    assert needed == window or needed % -(-window // sizes) == 0
