"""Softmax together with the logarithm of its sum, and what it makes of values."""

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import shape
from tf_sparse_attention.ops.products import products_with_keys, side_by_side, sum_of_values
from tf_sparse_attention.types import DType, Tensor

MOST_AXES = 5  # of TensorFlow's softmax


def lowest(dtype: DType) -> float:
    """Returns the most negative finite number of a floating dtype, which stands for a masked score."""
    return -1.7976931348623157e308 if dtype == "float64" else -3.4028234663852886e38


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


def weighted_sum(
    scores: Tensor, value: Tensor, mask: Tensor | None = None, row_has_key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the sum of values by the softmax of their scores, and the log-sum-exp.

    The gradient of the scores is p (v . do - o . do + dl): the sum of p dp over all keys is o . do (Dao et al. 2022,
    "FlashAttention", appendix B.2), which goes over rows of values and not over rows of weights; of keys that a mask
    leaves out p is 0, so that no other mask is needed.

    Args:
        scores: (..., t, s).
        value: (..., s, Hv), or without the axis of heads before t where these share values.
        mask: bool, broadcastable to (..., t, s), keys that count. None: all.
        row_has_key: bool, broadcastable to (..., t, 1), where there is such a key. None: everywhere.

    Returns:
        Pair (..., t, Hv) in the dtype of the values, zeros where a row has no key, and (..., t).
    """
    dtype = keras.backend.standardize_dtype(scores.dtype)

    def compute(scores, value):
        scores = scores if mask is None else ops.where(mask, scores, lowest(dtype))
        weights, log_sum_exp = _softmax_and_sum(scores)
        weights = ops.cast(weights, value.dtype)
        output = sum_of_values(weights, value)
        return weights, output if row_has_key is None else ops.where(row_has_key, output, 0), log_sum_exp

    @ops.custom_gradient
    def with_one_gradient(scores, value):
        weights, output, log_sum_exp = compute(scores, value)

        def grad(*args, upstream=None):
            given = args if upstream is None else upstream
            of_output, of_sum = given[0] if len(given) == 1 else given  # JAX passes both as one
            if row_has_key is not None:
                of_output = ops.where(row_has_key, of_output, 0)
                of_sum = ops.where(row_has_key[..., 0], of_sum, 0)
            mean = ops.sum(ops.cast(of_output, dtype) * ops.cast(output, dtype), axis=-1)
            of_weights = ops.cast(products_with_keys(of_output, value), dtype)
            of_scores = ops.cast(weights, dtype) * (of_weights + (of_sum - mean)[..., None])
            of_value = ops.matmul(ops.swapaxes(side_by_side(weights, value), -1, -2), side_by_side(of_output, value))
            return of_scores, of_value

        return (output, log_sum_exp), grad

    # PyTorch's functions with a gradient of their own return one tensor.
    return compute(scores, value)[1:] if keras.backend.backend() == "torch" else with_one_gradient(scores, value)
