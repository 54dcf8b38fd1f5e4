"""Row gathers equal plain indexing and so do their gradients, without a scatter."""

import numpy as np
import pytest
from keras import ops

from tests.ops.jax_worker import run_check
from tests.programs import differentiate
from tf_sparse_attention.ops.gather import (
    permute_rows,
    stable_order,
    take_blocks,
    take_numbers,
    take_rows,
    take_unique_rows,
)

tf = pytest.importorskip("tensorflow")
SCATTERS = ("Scatter", "UnsortedSegment", "SegmentSum", "IndexedSlices", "StridedSliceGrad", "SparseToDense")


def numbers(x):
    return ops.convert_to_numpy(x)


def permutation(seed=0, shape=(2, 3, 7)):
    order = np.argsort(np.random.default_rng(seed).random(shape), axis=-1).astype("int32")
    return order, np.argsort(order, axis=-1).astype("int32")


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_rows_are_taken_by_batch_and_head():
    x, index = draw(2, 3, 5, 4), np.random.default_rng(1).integers(5, size=(2, 3, 9), dtype="int32")
    expected = np.take_along_axis(x, index[..., None], 2)
    np.testing.assert_array_equal(numbers(take_rows(x, index)), expected)
    np.testing.assert_array_equal(numbers(take_numbers(x[..., 0], index)), expected[..., 0])


def test_long_sequences_are_sorted_stably():
    groups = np.random.default_rng(0).integers(3, size=(1, 2, 5000), dtype="int32")
    order, inverse = stable_order(groups)
    np.testing.assert_array_equal(numbers(order), np.argsort(groups, axis=-1, kind="stable"))
    np.testing.assert_array_equal(
        np.take_along_axis(numbers(order), numbers(inverse), -1), np.tile(np.arange(5000), (1, 2, 1))
    )


def plain(x, index):
    return tf.gather(x, index, axis=2, batch_dims=2)


# Six rows of ten are wanted, each once; 9 stands for a row that is wanted but whose gradient is not.
PICKED = np.tile(np.array([3, 0, 9, 7, 5, 1, 2], "int32"), (2, 3, 1))
BACK = np.tile(np.array([1, 5, 6, 0, 0, 4, 0, 3, 0, 0], "int32"), (2, 3, 1))
PRESENT = np.tile(np.isin(np.arange(10), [3, 0, 7, 5, 1, 2]), (2, 3, 1))


ORDER, INVERSE = permutation()
BLOCKS = np.random.default_rng(2).integers(3, size=(2, 3, 9), dtype="int32")  # the last block is not taken
# Function, the same by plain indexing, and the shapes of the rows and the result.
GATHERS = {
    "permutation": (lambda x: permute_rows(x, ORDER, INVERSE), lambda x: plain(x, ORDER), (2, 3, 7, 4), (2, 3, 7, 4)),
    "unique rows": (
        lambda x: take_unique_rows(x, PICKED, BACK, PRESENT),
        lambda x: plain(x, PICKED),
        (2, 3, 10, 4),
        (2, 3, 7, 4),
    ),
    "blocks": (lambda x: take_blocks(x, BLOCKS), lambda x: plain(x, BLOCKS), (2, 3, 4, 2, 5), (2, 3, 9, 2, 5)),
    "shared blocks": (
        lambda x: take_blocks(x, BLOCKS),
        lambda x: plain(ops.repeat(x, 3, axis=1), BLOCKS),
        (2, 1, 4, 2, 5),
        (2, 3, 9, 2, 5),
    ),
}


@pytest.mark.parametrize("name", GATHERS)
def test_values_and_gradients_are_those_of_the_plain_gather(name):
    function, expected, rows, result = GATHERS[name]
    inputs, cotangent = {"x": draw(*rows)}, draw(*result, seed=1)
    if name == "unique rows":
        cotangent[:, :, 2] = 0  # row 9 has no gradient
    for run in (differentiate, tf.function(differentiate, jit_compile=True)):
        (actual,), gradient = run(lambda x: (function(x["x"]),), inputs, cotangent)
        (wanted,), wanted_gradient = run(lambda x: (expected(x["x"]),), inputs, cotangent)
        np.testing.assert_array_equal(numbers(actual), numbers(wanted))
        np.testing.assert_allclose(numbers(gradient["x"]), numbers(wanted_gradient["x"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_gradient_keeps_the_dtype(dtype):
    order, inverse, x = ORDER, INVERSE, ops.cast(draw(2, 3, 7, 4), dtype)
    (y,), gradient = differentiate(lambda x: (permute_rows(x["x"], order, inverse),), {"x": x}, x)
    assert y.dtype == gradient["x"].dtype == dtype
    np.testing.assert_array_equal(numbers(gradient["x"]), np.take_along_axis(numbers(x), inverse[..., None], 2))


def operations(run, *shapes):
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in shapes]
    program = tf.function(run).get_concrete_function(*signature)
    return {operation.type for operation in program.graph.get_operations()}


def scatters(types):
    return {name for name in types if any(part in name for part in SCATTERS)}


def test_gradients_of_permutations_and_unique_rows_have_no_scatter():
    rows, index = ((2, 3, 7, 4), "float32"), ((2, 3, 7), "int32")

    def permuted(x, order, inverse, cotangent):
        return differentiate(lambda x: (permute_rows(x["x"], order, inverse),), {"x": x}, cotangent)

    def picked(x, cotangent):
        return differentiate(lambda x: (take_unique_rows(x["x"], PICKED, BACK, PRESENT),), {"x": x}, cotangent)

    def gathered(x, order, cotangent):
        return differentiate(lambda x: (take_rows(x["x"], order),), {"x": x}, cotangent)

    assert scatters(operations(permuted, rows, index, index, rows)) == set()
    assert scatters(operations(picked, ((2, 3, 10, 4), "float32"), rows)) == set()
    assert scatters(operations(gathered, rows, index, rows))  # the same look finds the scatter of the plain gather


def test_gradients_on_jax_are_those_of_the_plain_gather_without_a_scatter(run_jax):
    found = run_check(run_jax, "gathers")
    assert found["permute_rows"] == found["take_unique_rows"] == [0, False]
    assert found["take_rows"][1]  # the gradient of the plain gather has a scatter
    assert found["take_blocks"][0] < 1e-6
