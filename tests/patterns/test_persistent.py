"""Persistent vectors are additional keys in the softmax of every query, which no mask hides."""

import numpy as np
import pytest
from keras import ops

from tests.patterns.small_cases import attend_pattern
from tf_sparse_attention.ops.attend import Dropout
from tf_sparse_attention.ops.masks import TokenMasks
from tf_sparse_attention.patterns import Window

PRECISION = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 0.04}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float64"))


@pytest.mark.parametrize(
    ("dtype", "soft_cap", "batch"),
    [("float64", 0.5, (2,)), ("float64", None, ()), ("float32", 0.5, ()), ("bfloat16", None, (2,))],
)
def test_vectors_are_keys_that_no_mask_hides(dtype, batch, soft_cap):
    heads = [ops.cast(draw(2, 2, 5, size, seed=size), dtype) for size in (6, 6, 3)]
    persistent = [ops.cast(draw(*batch, 2, 7, size, seed=size), dtype) for size in (6, 3)]
    mask = draw(1, 1, 5, 5, seed=5) > 0
    mask[:, :, 1] = False
    query, key, value = (numbers(x) for x in heads)
    more = [np.broadcast_to(numbers(x), (2, *x.shape[-3:])) for x in persistent]
    scores = query @ np.concatenate([more[0], key], -2).swapaxes(-1, -2)
    scores = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
    scores[..., 7:][np.broadcast_to(~mask, (2, 2, 5, 5))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    masks = TokenMasks(attention_mask=mask)
    attended = attend_pattern(
        Window(9), *heads, masks=masks, persistent=persistent, soft_cap=soft_cap, return_weights=True
    )
    expected = weights @ np.concatenate([more[1], value], -2)
    np.testing.assert_allclose(numbers(attended.output), expected, rtol=0, atol=PRECISION[dtype])
    np.testing.assert_allclose(numbers(attended.weights), weights[..., 7:], rtol=0, atol=PRECISION[dtype])


def test_dropout_applies_to_vectors():
    # One key and one vector of weight 1/2 each: what is kept counts 1, and both come and go.
    zeros, ones = np.zeros((1, 1, 200, 1)), np.ones((1, 1, 200, 1))
    persistent = np.zeros((1, 1, 1)), np.full((1, 1, 1), 10.0)
    attended = attend_pattern(Window(1), zeros, zeros, ones, persistent=persistent, dropout=Dropout(0.5, 1))
    assert {round(x) for x in numbers(attended.output).ravel().tolist()} == {0, 1, 10, 11}
