"""A function of those rows alone that need it; its gradients are checked in `test_word_clusters.py`."""

import keras
import numpy as np
import pytest

from tf_sparse_attention.ops.row_subset import apply_to_subset


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 99, 100])
def test_rows_that_need_nothing_are_zero_whatever_their_number(count):
    needed = np.random.default_rng(0).permutation(100) < count
    x = np.arange(100.0)
    (result,) = apply_to_subset(lambda rows, weights, numbers: (rows[0] + 1,), needed, [x], dtypes=("float64",))
    np.testing.assert_array_equal(result, np.where(needed, x + 1, 0))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 51, 100])
def test_at_most_twice_the_rows_that_need_it_are_computed(count):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("on JAX every branch is traced")
    seen = []

    def function(rows, weights, numbers):
        seen.append(rows[0].shape[0])
        return (rows[0],)

    apply_to_subset(function, np.arange(100) < count, [np.arange(100.0)], dtypes=("float64",))
    assert (seen == []) if count == 0 else count <= seen[0] <= max(2, 2 * count)
