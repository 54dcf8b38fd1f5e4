"""Softmax together with the logarithm of its sum, and the sum of values by it."""

import keras
from keras import ops

from tf_sparse_attention.ops.blocks import max_over, shape
from tf_sparse_attention.ops.gradients import of_two_results
from tf_sparse_attention.ops.products import products_with_keys, side_by_side, sum_of_values
from tf_sparse_attention.types import DType, Tensor

SELF_BIAS = -1e30  # below every score and above the masked ones: self is seen only when nothing else is
SOFTMAX_AXES = 5  # of TensorFlow's softmax


def lowest(dtype: DType) -> float:
    """Returns the most negative finite number of a floating dtype, which stands for a masked score."""
    return -1.7976931348623157e308 if dtype == "float64" else -3.4028234663852886e38


def softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis of scores (..., t, s)."""
    if scores.shape[-1] == 1:  # Keras warns of it, which is right for a sequence of one token
        return ops.exp(scores - scores)
    if len(scores.shape) <= SOFTMAX_AXES:
        return ops.softmax(scores, axis=-1)
    sizes = shape(scores)
    return ops.reshape(ops.softmax(ops.reshape(scores, (-1, *sizes[-2:])), axis=-1), sizes)


def softmax_with_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax over the last axis and the log-sum-exp, of scores (..., s): (..., s) and (...).

    The largest weight is 1 over the sum, which tells it without a second look at exponentials. The gradient is that of
    both at once, p (dp - sum p dp + dl): half of what the derivative of each step would go over.
    """
    return _softmax_with_one_gradient(scores) if _have_own_gradients() else _softmax_and_sum(scores)


def softmax_of_values(
    scores: Tensor, value: Tensor, mask: Tensor | None = None, row_has_key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the sum of values by the softmax of their scores, and the log-sum-exp.

    The gradient of the scores is p (v . do - o . do + dl). The sum of p dp over all keys is o . do (Dao et al. 2022,
    "FlashAttention", appendix B.2), which goes over rows of values and not over rows of weights; of keys that a mask
    leaves out p is 0, so that no other mask is needed.

    Args:
        scores: (..., t, s), or with one axis more, (..., g, t, s), those of g heads that share values.
        value: (..., s, Hv).
        mask: bool, broadcastable to the scores, keys that count. None: all.
        row_has_key: bool, broadcastable to (..., t, 1), where there is such a key; it must not say so of a row without
            one whose results are used. None: everywhere.

    Returns:
        Pair (..., t, Hv) in the dtype of the values, zeros where a row has no key, and (..., t).
    """
    if not _have_own_gradients():
        return _softmax_of_values(scores, value, mask, row_has_key)[:2]
    # Masks are arguments: JAX derives what it traced (`jit`, `remat`, loops) when the trace has ended, and tensors that
    # a function had closed over are gone with it.
    masks = {name: x for name, x in (("mask", mask), ("row_has_key", row_has_key)) if x is not None}

    @ops.custom_gradient
    def with_one_gradient(scores, value, *numbers):
        given = dict(zip(masks, numbers, strict=True))
        output, log_sum_exp, weights = _softmax_of_values(scores, value, **given)

        def grad(*args, upstream=None):
            of_output, of_sum = of_two_results(args, upstream)
            if row_has_key is not None:
                of_output = ops.where(given["row_has_key"], of_output, 0)
                of_sum = ops.where(given["row_has_key"][..., 0], of_sum, 0)
            of_weights = ops.cast(products_with_keys(of_output, value), weights.dtype)
            # In half precision the mean has to be that of the rounded products, whose errors it takes away.
            is_exact = output.dtype == weights.dtype
            mean = ops.sum(of_output * output if is_exact else weights * of_weights, axis=-1)
            of_scores = weights * (of_weights + (of_sum - mean)[..., None])
            rows = side_by_side(ops.cast(weights, value.dtype), value)
            of_value = ops.matmul(ops.swapaxes(rows, -1, -2), side_by_side(of_output, value))
            return of_scores, of_value, *(None for _ in numbers)

        return (output, log_sum_exp), grad

    return with_one_gradient(scores, value, *masks.values())


def _have_own_gradients():
    """Whether functions of two results can have a gradient of their own; on torch those that have one return one."""
    return keras.backend.backend() != "torch"


def _softmax_and_sum(scores):
    weights = softmax(scores)
    return weights, max_over(scores, axis=-1) - ops.log(max_over(weights, axis=-1))


@ops.custom_gradient
def _softmax_with_one_gradient(scores):
    weights, log_sum_exp = _softmax_and_sum(scores)

    def grad(*args, upstream=None):
        of_weights, of_sum = of_two_results(args, upstream)
        mean = ops.sum(weights * of_weights, axis=-1, keepdims=True)
        return weights * (of_weights + (of_sum[..., None] - mean))

    return (weights, log_sum_exp), grad


def _softmax_of_values(scores, value, mask=None, row_has_key=None):
    """Returns the results of `softmax_of_values`, and the weights in the dtype of the scores."""
    if mask is not None:
        scores = ops.where(mask, scores, lowest(keras.backend.standardize_dtype(scores.dtype)))
    weights, log_sum_exp = _softmax_and_sum(scores)
    output = sum_of_values(ops.cast(weights, value.dtype), value)
    return output if row_has_key is None else ops.where(row_has_key, output, 0), log_sum_exp, weights
