"""Softmax together with the logarithm of its sum."""

from keras import ops

from tf_sparse_attention.types import Tensor


@ops.custom_gradient
def softmax_with_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax over the last axis and the log-sum-exp, of scores (..., s): (..., s) and (...).

    The largest weight is 1 over the sum, which tells it without a second look at exponentials. The gradient is that of
    both at once, p (dp - sum p dp + dl): half of what the derivative of each step would go over.
    """
    # Keras warns of a softmax over one slot, which is right for a sequence of one token.
    weights = ops.exp(scores - scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
    log_sum_exp = ops.max(scores, axis=-1) - ops.log(ops.max(weights, axis=-1))

    def grad(*args, upstream=None):
        given = args if upstream is None else upstream
        of_weights, of_sum = given[0] if len(given) == 1 else given  # JAX passes both as one
        mean = ops.sum(weights * of_weights, axis=-1, keepdims=True)
        return weights * (of_weights + (of_sum[..., None] - mean))

    return (weights, log_sum_exp), grad
