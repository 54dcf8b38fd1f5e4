"""Row gathers equal plain indexing and so do their gradients, without a scatter."""

import numpy as np
import pytest
from keras import ops

from tests.ops.jax_worker import run_check
from tests.programs import differentiate
from tf_sparse_attention.ops import gather, masks
from tf_sparse_attention.ops.gather import permute_rows, take_blocks, take_rows, take_unique_rows

tf = pytest.importorskip("tensorflow")
SCATTERS = ("Scatter", "UnsortedSegment", "SegmentSum", "IndexedSlices", "StridedSliceGrad", "SparseToDense")


def numbers(x):
    return ops.convert_to_numpy(x)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_long_sequences_are_sorted_stably():
    groups = np.random.default_rng(0).integers(3, size=(1, 2, 5000), dtype="int32")
    order, inverse = map(numbers, gather.stable_order(groups))
    np.testing.assert_array_equal(order, np.argsort(groups, axis=-1, kind="stable"))
    np.testing.assert_array_equal(np.take_along_axis(order, inverse, -1), np.tile(np.arange(5000), (1, 2, 1)))


def test_documents_are_numbered_in_the_order_of_their_ids():
    ids = np.array([[50, -7, 50, 2**31 - 1, -(2**31), -7]])
    assert numbers(gather.segment_ranks(ids)[0]).tolist() == [[2, 1, 2, 3, 0, 1]]


def plain(x, index):
    return tf.gather(x, index, axis=2, batch_dims=2)


# Six rows of ten are wanted, each once; 9 stands for a row that is wanted but whose gradient is not.
PICKED = np.tile(np.array([3, 0, 9, 7, 5, 1, 2], "int32"), (2, 3, 1))
BACK = np.tile(np.array([1, 5, 6, 0, 0, 4, 0, 3, 0, 0], "int32"), (2, 3, 1))
PRESENT = np.tile(np.isin(np.arange(10), [3, 0, 7, 5, 1, 2]), (2, 3, 1))


ORDER = np.argsort(np.random.default_rng(0).random((2, 3, 7)), axis=-1).astype("int32")
INVERSE = np.argsort(ORDER, axis=-1).astype("int32")
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


def scatters(function, num_rows=7):
    """Return the scatters among the operations of the gradient of a function of rows to seven rows."""
    program = tf.function(lambda x, y: differentiate(lambda x: (function(x["x"]),), {"x": x}, y))
    signature = [tf.TensorSpec((2, 3, count, 4)) for count in (num_rows, 7)]
    types = {operation.type for operation in program.get_concrete_function(*signature).graph.get_operations()}
    return {name for name in types if any(part in name for part in SCATTERS)}


def test_gradients_of_permutations_and_unique_rows_have_no_scatter():
    assert scatters(GATHERS["permutation"][0]) == scatters(GATHERS["unique rows"][0], 10) == set()
    assert scatters(lambda x: take_rows(x, ORDER))  # the same look finds the scatter of the plain gather


@pytest.mark.full
def test_gradients_on_jax_are_those_of_the_plain_gather_without_a_scatter(run_jax):
    found = run_check(run_jax, "gathers")
    assert found["permute_rows"] == found["take_unique_rows"] == [0, False]
    assert found["take_rows"][1]  # the gradient of the plain gather has a scatter
    assert found["take_blocks"][0] < 1e-6


def test_masks_of_five_axes_are_merged_by_and():
    for shapes in [
        ((2, 3, 4, 5, 1), (2, 3, 4, 1, 6)),
        ((2, 1, 4, 1, 6), (4, 5, 6)),
        ((1, 1, 1, 1, 1), (2, 3, 4, 5, 6)),
        ((0, 3, 1, 5, 1), (1, 3, 1, 5, 6)),
        ((1, 1, 6), (1, 1, 1, 1, 6)),
    ]:
        first, second = (np.random.default_rng(i).random(shape) < 0.5 for i, shape in enumerate(shapes))
        merged = masks.merge(ops.convert_to_tensor(first), ops.convert_to_tensor(second))
        np.testing.assert_array_equal(ops.convert_to_numpy(merged), first & second)
    assert masks.merge(None, None) is None


def test_an_attention_mask_that_is_broadcast_is_not_expanded():
    positions = np.zeros((2, 3, 4, 5), "int32")
    assert masks.take_mask_pairs(np.ones((1, 1, 1, 1), bool), positions, positions).shape == (1, 1, 1, 1, 1)
    picked = masks.take_mask_pairs(np.ones((2, 1, 1, 9), bool), positions[:1, :1], positions[:1, :1])
    assert picked.shape == (2, 1, 4, 1, 5)
