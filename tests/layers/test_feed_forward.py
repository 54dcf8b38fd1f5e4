"""The feed-forward sublayer against its formula."""

import math

import numpy as np

from tests.contracts import SIZE, assert_close, normal, to_numpy, with_random_weights
from tf_sparse_attention.layers import FeedForward

X = normal(2, 5, SIZE)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def ready(**own):
    layer = FeedForward(6, **own)
    layer.build(X.shape)
    return with_random_weights(layer)


PLAIN = {"relu": lambda x: np.maximum(x, 0), "gelu": gelu, "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x))}
GATED = {"geglu": gelu, "swiglu": lambda x: x / (1 + np.exp(-x))}


def test_outputs_equal_the_formulas(subtests):
    for activation, function in PLAIN.items():
        layer = ready(activation=activation)
        inner, inner_bias, output, output_bias = layer.get_weights()
        with subtests.test(activation):
            assert_close(to_numpy(layer(X)), function(X @ inner + inner_bias) @ output + output_bias, 1e-5)
    for activation, function in GATED.items():
        layer = ready(activation=activation)
        gate, inner, output = layer.get_weights()
        with subtests.test(activation):
            assert [weight.path.split("/")[-2] for weight in layer.weights] == ["gate", "inner", "output"]
            assert_close(to_numpy(layer(X)), (function(X @ gate) * (X @ inner)) @ output, 1e-5)


def test_biases_can_be_chosen():
    assert len(ready(activation="geglu", use_bias=True).weights) == 6
    assert len(ready(use_bias=False).weights) == 2


def test_dropout_applies_after_the_activation_only_in_training():
    layer = ready(dropout=0.5, seed=1, use_bias=False, activation="relu")
    layer.set_weights([layer.get_weights()[0], np.eye(6, SIZE)])
    dropped, kept = to_numpy(layer(X, training=True))[..., :6], to_numpy(layer(X))[..., :6]
    ratio = dropped[kept > 0.01] / kept[kept > 0.01]
    assert set(np.round(ratio, 4)) == {0.0, 2.0}
    assert np.any(to_numpy(layer(X, training=True))[..., :6] != dropped)
