"""Persistent vectors are additional keys in the softmax of every query, which no mask hides."""

import numpy as np
import pytest
from keras import ops

from tests.patterns.small_cases import attend_pattern
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import Window


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float64"))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 0.04)])
def test_vectors_are_keys_that_no_mask_hides(dtype, tolerance):
    rng = np.random.default_rng(0)
    heads = [ops.cast(rng.standard_normal((2, 2, 5, size)), dtype) for size in (6, 6, 3)]
    vectors = [ops.cast(rng.standard_normal((2, 7, size)), dtype) for size in (6, 3)]
    mask = rng.random((1, 1, 5, 5)) < 0.5
    mask[:, :, 1] = False
    found = attend_pattern(Window(9), *heads, masks=TokenMasks(attention_mask=mask), persistent=vectors).output
    query, *keys_and_values = heads
    whole = [
        ops.concatenate([x, ops.tile(more[None], (2, 1, 1, 1))], 2)
        for x, more in zip(keys_and_values, vectors, strict=True)
    ]
    everything = np.concatenate([mask, np.ones((1, 1, 5, 7), bool)], axis=-1)
    weights = np.where(everything, np.exp(numbers(query) @ numbers(whole[0]).swapaxes(-1, -2)), 0)
    expected = weights / weights.sum(-1, keepdims=True) @ numbers(whole[1])
    np.testing.assert_allclose(numbers(found), expected, rtol=0, atol=tolerance)


def test_dropout_applies_to_vectors():
    # One key and one vector of weight 1/2 each: what is kept counts 1, and both come and go.
    zeros, ones = np.zeros((1, 1, 200, 1)), np.ones((1, 1, 200, 1))
    persistent = np.zeros((1, 1, 1)), np.full((1, 1, 1), 10.0)
    attended = attend_pattern(Window(1), zeros, zeros, ones, persistent=persistent, dropout=Dropout(0.5, 1))
    assert {round(x) for x in numbers(attended.output).ravel().tolist()} == {0, 1, 10, 11}
