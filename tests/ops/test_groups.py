"""The group of the highest score is that of argmax, the lowest of equals."""

import numpy as np
from keras import ops

from tf_sparse_attention.ops.groups import best_group


def best(scores):
    found = best_group(ops.convert_to_tensor(scores, "float32"))
    assert found.dtype == "int32"
    return ops.convert_to_numpy(found)


def test_the_best_group_has_the_highest_score():
    scores = np.random.default_rng(0).normal(size=(2, 3, 50, 7))
    np.testing.assert_array_equal(best(scores), scores.argmax(-1))


def test_of_equals_the_lowest_is_taken_and_zeros_have_no_sign():
    assert best([[1, 2, 2], [0, 0, 0], [-0.0, 0.0, -1.0], [-np.inf] * 3]).tolist() == [1, 0, 0, 0]


def test_a_row_with_nan_has_a_group_that_exists():
    assert 0 <= best([[np.nan, 1.0, 2.0]])[0] < 3
