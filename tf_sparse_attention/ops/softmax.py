"""Softmax together with the logarithm of its sum."""

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.types import Tensor

MOST_AXES = 5  # of TensorFlow's softmax


def softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis of scores (..., t, s)."""
    if scores.shape[-1] == 1:  # Keras warns of it, which is right for a sequence of one token
        return ops.exp(scores - scores)
    if len(scores.shape) <= MOST_AXES:
        return ops.softmax(scores, axis=-1)
    sizes = shape(scores)
    return ops.reshape(ops.softmax(ops.reshape(scores, (-1, *sizes[-2:])), axis=-1), sizes)


def softmax_with_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax over the last axis and the log-sum-exp, of scores (..., s): (..., s) and (...).

    The largest weight is 1 over the sum, which tells it without a second look at exponentials. The gradient is that of
    both at once, p (dp - sum p dp + dl): half of what the derivative of each step would go over.
    """
    if keras.backend.backend() == "torch":  # where a function with a gradient of its own returns one tensor
        return _softmax_and_sum(scores)
    return _with_one_gradient(scores)


def _softmax_and_sum(scores):
    weights = softmax(scores)
    return weights, ops.max(scores, axis=-1) - ops.log(ops.max(weights, axis=-1))


@ops.custom_gradient
def _with_one_gradient(scores):
    weights, log_sum_exp = _softmax_and_sum(scores)

    def grad(*args, upstream=None):
        given = args if upstream is None else upstream
        of_weights, of_sum = given[0] if len(given) == 1 else given  # JAX passes both as one
        mean = ops.sum(weights * of_weights, axis=-1, keepdims=True)
        return weights * (of_weights + (of_sum[..., None] - mean))

    return (weights, log_sum_exp), grad
