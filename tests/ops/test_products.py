"""Products of operands with different leading axes, and that nothing else multiplies such operands."""

import keras
import numpy as np
import pytest
from keras import ops

import tf_sparse_attention as tsa
from tf_sparse_attention.ops.products import scores_of_slots, sum_of_slots, times_matrix


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_a_matrix_multiplies_the_last_axis():
    x, matrix = normal(2, 1, 3, 4), normal(4, 5)
    np.testing.assert_allclose(times_matrix(x, matrix), x @ matrix, rtol=1e-5)


def test_slots_are_shared_by_batch_and_blocks():
    query, key, value = normal(2, 3, 4, 5, 8), normal(3, 1, 6, 8), normal(3, 1, 6, 7)
    scores = scores_of_slots(query, key)
    np.testing.assert_allclose(scores, query @ key.swapaxes(-1, -2), rtol=1e-4, atol=1e-5)
    weights = normal(2, 3, 4, 5, 6)
    np.testing.assert_allclose(sum_of_slots(weights, value), weights @ value, rtol=1e-4, atol=1e-5)


LAYERS = {
    "local": lambda: tsa.layers.LocalAttention(1, 4, window=3, position="relative"),
    "nearest": lambda: tsa.layers.RoutingAttention(1, 4, 3, 4, position="relative"),
    "token distance": lambda: tsa.layers.RoutingAttention(1, 4, 3, 4, position="relative", distance="token"),
    "separate": lambda: tsa.layers.RoutingAttention(1, 4, 3, 4, share_qk=False, position="relative"),
    "top_k": lambda: tsa.layers.RoutingAttention(1, 4, 3, 4, selection="top_k", position="relative"),
}


@pytest.mark.filterwarnings("ignore:RoutingAttention with selection='top_k'")
@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_lets_matmul_broadcast(name, monkeypatch):
    """TensorFlow 2.21 corrupts memory there, and only sometimes crashes: see `ops/products.py`."""
    multiply, seen = ops.matmul, []

    def checked(x, y):
        seen.append((x.shape, y.shape))
        assert len(y.shape) == 2 or x.shape[:-2] == y.shape[:-2], seen[-1]
        return multiply(x, y)

    layer = LAYERS[name]()
    monkeypatch.setattr(keras.ops, "matmul", checked)
    layer(normal(2, 7, 6), use_causal_mask=True, training=True)
    assert seen
