"""The one masked softmax of the library."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.blocks import are_known, in_range, max_over, shape
from tf_sparse_attention.ops.masks import constant_mask
from tf_sparse_attention.ops.random_bits import derived_seed, pair_uniform
from tf_sparse_attention.types import DType, Seed, Size, Tensor


class Dropout(NamedTuple):
    """What `attend` needs to drop attention weights.

    Attributes:
        rate: share of weights dropped, in [0, 1); the others are divided by 1 - rate.
        seed: integer or `keras.random.SeedGenerator`.
        queries: int32 (B, N, ..., t), the position of each query, or None: weights are dropped by their slot.
        keys: int32 (B, N, ..., s), the position of each key. With both, weights are dropped by pair of positions, so
            that which ones does not change where a later token moves others to another slot.
    """

    rate: float
    seed: Seed
    queries: Tensor | None = None
    keys: Tensor | None = None

    def with_positions(self, queries: Tensor, keys: Tensor) -> Self:
        """Returns this dropout with the positions of queries and keys."""
        return self._replace(queries=queries, keys=keys)

    def without_positions(self) -> "Dropout":
        """Returns the dropout for persistent vectors, which have no positions."""
        # A seed that is a number would drop the same slots as it does of the keys.
        seed = derived_seed(self.seed, 1) if isinstance(self.seed, int) else self.seed
        return Dropout(self.rate, seed)


class Attended(NamedTuple):
    """Result of `attend`: output (..., t, Hv), and the optional results that were requested, else None.

    `weights` (..., t, s) are, as in Keras, those before dropout. `log_sum_exp`
    (..., t) is float32 (float64 for float64 inputs), the dtype's minimum where a row has nothing to attend to.
    """

    output: Tensor
    weights: Tensor | None = None
    log_sum_exp: Tensor | None = None

    def restored(self, rows: Callable[[Tensor], Tensor], dense: Callable[[Tensor], Tensor]) -> "Attended":
        """Returns these results in the order of the sequence.

        Args:
            rows: function that puts rows of queries back, from (B, N, G, t, X) to (B, N, T, X).
            dense: function of the weights of key slots to those of all keys, (B, N, G, t, s) to (B, N, G, t, S).
        """
        weights = None if self.weights is None else rows(dense(self.weights))
        log_sum_exp = None if self.log_sum_exp is None else rows(self.log_sum_exp[..., None])[..., 0]
        return Attended(rows(self.output), weights, log_sum_exp)


def score_dtype(dtype: DType) -> str:
    """Returns the dtype of scores and softmax: float32, or float64 for float64 inputs."""
    return "float64" if dtype == "float64" else "float32"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    span: Tensor | None = None,
    dropout: Dropout | None = None,
    value_bias: Callable[[Tensor], Tensor] | None = None,
    row_has_key: Tensor | None = None,
    soft_cap: float | None = None,
    return_weights: bool = False,
    return_log_sum_exp: bool = False,
) -> Attended:
    """Computes softmax attention of every query over the keys of its group.

    out_t = sum_s p_ts v_s with p_t = softmax(q_t . k_s + bias_ts) over the s that `mask` allows. Scores are not
    divided: scale the query. With a span, e_ts = exp(score - max) mask span, divided by its sum: a factor, because its
    logarithm as a bias would have NaN gradients where the span is 0. Scores, softmax and sums are float32 (float64 for
    float64 inputs); the result has the dtype of `value`. Cost O(t s) for each group.

    Args:
        query: tensor (..., t, H). Leading axes are groups (batch, heads, blocks). With one axis more than the keys,
            (..., g, t, H), queries of g heads that share keys: so are then mask, bias, span and the results.
        key: tensor (..., s, H).
        value: tensor (..., s, Hv).
        mask: bool, broadcastable to (..., t, s), True where a query may attend. None allows everything.
        bias: float, broadcastable to (..., t, s), added to the scores.
        span: float in [0, 1], broadcastable to (..., t, s): a soft mask.
        dropout: a `Dropout`, or None.
        value_bias: function of the weights (..., t, s), in the dtype of `value`, to a tensor (..., t, Hv) that is
            added to the output: the value side of relative positions.
        row_has_key: bool, broadcastable to (..., t, 1), where a row has something to attend to, for callers who know
            without looking at the mask. None: what the mask says.
        soft_cap: c of c tanh(q_t . k_s / c) in place of the products, before the bias; or None.
        return_weights: whether to return the weights.
        return_log_sum_exp: whether to return the logarithm of the softmax's sum, for `combine`.

    Returns:
        An `Attended`. A row with nothing to attend to, decided by the mask and not by the scores, gives zeros
        (and weights of zero); its gradient is zero.
    """
    dtype = score_dtype(keras.backend.standardize_dtype(query.dtype))
    scores = query_key_products(ops.cast(query, dtype), ops.cast(key, dtype))
    if soft_cap is not None:
        scores = _capped(scores, soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, dtype)
    row_has_key = _row_has_key(mask, row_has_key)
    if isinstance(mask, np.ndarray):
        mask = constant_mask(mask)
    if return_log_sum_exp and not return_weights and span is None and dropout is None and value_bias is None:
        output, log_sum_exp = attend_scores(scores, value, mask, row_has_key)
        return Attended(output, log_sum_exp=log_sum_exp)
    if mask is not None:
        scores = ops.where(mask, scores, lowest(dtype))
    weights, log_sum_exp = _softmax(scores, span, return_log_sum_exp)
    weights = ops.cast(weights, value.dtype)
    dropped = apply_dropout(weights, dropout)
    output = weighted_sum(dropped, value)
    output = output if value_bias is None else output + value_bias(dropped)
    if row_has_key is not None:
        output = ops.where(row_has_key, output, 0)
        weights = ops.where(row_has_key, weights, 0) if return_weights else None
    return Attended(output, weights if return_weights else None, log_sum_exp if return_log_sum_exp else None)


def _capped(scores: Tensor, soft_cap: float) -> Tensor:
    """Compute c tanh(scores / c), c being the soft cap, in the dtype of the scores."""
    if keras.backend.standardize_dtype(scores.dtype) == "float64":  # Keras's tanh returns float32 for it on JAX
        return soft_cap * (2 * ops.sigmoid(scores * (2 / soft_cap)) - 1)
    return soft_cap * ops.tanh(scores / soft_cap)


def _row_has_key(mask, known):
    """Returns where a row of a mask has a key, (..., t, 1), if that is not `known`; None: everywhere."""
    if mask is None:
        return None
    if known is None and isinstance(mask, np.ndarray):
        some = np.asarray(mask.any(axis=-1, keepdims=True))
        return None if some.all() else constant_mask(some)
    return ops.any(mask, axis=-1, keepdims=True) if known is None else known


def apply_dropout(weights: Tensor, dropout: Dropout | None) -> Tensor:
    """Returns weights with those dropped that a `Dropout` says; None drops nothing."""
    if dropout is None or dropout.rate == 0:
        return weights
    if dropout.queries is None:
        return keras.random.dropout(weights, dropout.rate, seed=dropout.seed)
    kept = pair_uniform(dropout.seed, dropout.queries, dropout.keys) >= dropout.rate
    return ops.where(kept, weights / (1 - dropout.rate), 0)


def _softmax(scores, span, with_sum):
    """Returns softmax weights under a span, zero where it silences a whole row, and their log-sum-exp.

    Without a span it is None unless `with_sum`.
    """
    if span is None:
        return softmax_with_log_sum_exp(scores) if with_sum else (softmax(scores), None)
    dtype = keras.backend.standardize_dtype(scores.dtype)
    span = ops.cast(span, dtype)
    # A score that the span silences must not be the highest: the others would vanish beside it. It keeps its
    # exponential, since the gradient of a span that is 0 is not 0, up to where that would overflow.
    live = ops.stop_gradient(ops.where(span > 0, scores, lowest(dtype)))
    highest = max_over(live, axis=-1, keepdims=True)
    highest = ops.where(highest > lowest(dtype), highest, 0)  # masked scores stay far below it in any row
    exponentials = ops.exp(ops.minimum(scores - highest, 60)) * span
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    some = total > 0
    total = ops.where(some, total, 1)
    log_sum_exp = ops.where(some, highest + ops.log(total), lowest(dtype))
    # Times the inverse: the gradient of a quotient would go over the weights three times more.
    return exponentials * (1 / total), log_sum_exp[..., 0]


def attend_shared_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: Dropout | None = None,
    soft_cap: float | None = None,
    return_log_sum_exp: bool = False,
) -> Attended:
    """Computes attention of all rows to the same keys.

    Args:
        query: tensor (B, N, T, H).
        key: tensor (N, M, H), or with a batch (B, N, M, H) after all.
        value: tensor (N, M, Hv) or (B, N, M, Hv).
        dropout: a `Dropout`, or None.
        soft_cap: see `attend`.
        return_log_sum_exp: see `attend`.

    Returns:
        An `Attended`: output (B, N, T, Hv).
    """
    if query.shape[2] != 1 or len(key.shape) == 4:
        key, value = (ops.broadcast_to(x, (*shape(query)[:2], *shape(x)[-2:])) for x in (key, value))
        return attend(query, key, value, dropout=dropout, soft_cap=soft_cap, return_log_sum_exp=return_log_sum_exp)
    # Of one query a row, as in decoding, a copy of the keys for each row would be more than all the rest: here the
    # rows are queries beside each other.
    query = ops.swapaxes(query[:, :, 0], 0, 1)  # (N, B, H)
    attended = attend(query, key, value, dropout=dropout, soft_cap=soft_cap, return_log_sum_exp=return_log_sum_exp)
    output, _, log_sum_exp = (None if x is None else ops.swapaxes(x, 0, 1)[:, :, None] for x in attended)
    return Attended(output, log_sum_exp=log_sum_exp)


def apply_sinks(attended: Attended, sinks: Tensor) -> Attended:
    """Returns attention of heads in whose softmax there is one logit more, which has no value.

    A query that sees itself because it sees nothing else is left as it is: its own score is not known any more.

    Args:
        attended: an `Attended` of (B, N, T, Hv) with the log-sum-exp.
        sinks: float (N,), the logit of each head.
    """
    output, weights = attended[:2]
    log_sum_exp = cast(Tensor, attended.log_sum_exp)  # as asked for
    sinks = ops.cast(sinks, log_sum_exp.dtype)[:, None]
    kept = ops.where(log_sum_exp < SELF_BIAS / 2, 1.0, ops.sigmoid(log_sum_exp - sinks))[..., None]
    weights = None if weights is None else weights * ops.cast(kept, weights.dtype)
    return Attended(output * ops.cast(kept, output.dtype), weights, ops.logaddexp(log_sum_exp, sinks))


def combine_attended(parts: Sequence[Attended]) -> Attended:
    """Merges attention to several sets of keys into attention to all of them; a key of several sets counts as often.

    Args:
        parts: list of `Attended` with log-sum-exps.

    Returns:
        An `Attended`.
    """
    if len(parts) == 1:
        return parts[0]
    outputs, weights, log_sum_exps = zip(*parts, strict=True)
    return Attended(
        combine(outputs, log_sum_exps),
        None if weights[0] is None else combine(weights, log_sum_exps),
        functools.reduce(ops.logaddexp, log_sum_exps),
    )


def combine(outputs: Sequence[Tensor], log_sum_exps: Sequence[Tensor]) -> Tensor:
    """Merges attention over disjoint sets of keys into attention over their union, exactly.

    out = sum_r exp(l_r) out_r / sum_r exp(l_r), where l_r is the log-sum-exp of part r.

    Args:
        outputs: list of tensors (..., t, Hv).
        log_sum_exps: list of float tensors (..., t), as `attend` returns them.

    Returns:
        Tensor (..., t, Hv) in the dtype of the outputs: zeros where every part is empty.
    """
    stacked = ops.stack(log_sum_exps, axis=-1)  # (..., t, R)
    shares = ops.softmax(stacked, axis=-1)
    parts = [output * ops.cast(shares[..., r : r + 1], output.dtype) for r, output in enumerate(outputs)]
    return sum(parts[1:], parts[0])


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


def softmax_with_log_sum_exp(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax over the last axis and the log-sum-exp, of scores (..., s): (..., s) and (...).

    The largest weight is 1 over the sum, which tells it without a second look at exponentials. The gradient is that of
    both at once, p (dp - sum p dp + dl): half of what the derivative of each step would go over.
    """
    return _softmax_with_one_gradient(scores) if _have_own_gradients() else _softmax_and_sum(scores)


def attend_scores(
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
            of_output, of_sum = _upstream_pair(args, upstream)
            if row_has_key is not None:
                of_output = ops.where(given["row_has_key"], of_output, 0)
                of_sum = ops.where(given["row_has_key"][..., 0], of_sum, 0)
            of_weights = ops.cast(query_key_products(of_output, value), weights.dtype)
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
        of_weights, of_sum = _upstream_pair(args, upstream)
        mean = ops.sum(weights * of_weights, axis=-1, keepdims=True)
        return weights * (of_weights + (of_sum[..., None] - mean))

    return (weights, log_sum_exp), grad


def _softmax_of_values(scores, value, mask=None, row_has_key=None):
    """Returns the results of `attend_scores`, and the weights in the dtype of the scores."""
    if mask is not None:
        scores = ops.where(mask, scores, lowest(keras.backend.standardize_dtype(scores.dtype)))
    weights, log_sum_exp = _softmax_and_sum(scores)
    output = weighted_sum(ops.cast(weights, value.dtype), value)
    return output if row_has_key is None else ops.where(row_has_key, output, 0), log_sum_exp, weights


def query_key_products(rows: Tensor, keys: Tensor) -> Tensor:
    """Returns q_t . k_s of rows (..., t, H) and keys (..., s, H): (..., t, s)."""
    return _by_rows(_of_one if rows.shape[-2] == 1 else _of_many, rows, keys)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Returns the sum over s of p_ts v_s, of weights (..., t, s) and values (..., s, Hv): (..., t, Hv)."""
    return _by_rows(ops.matmul, weights, values)


def side_by_side(rows: Tensor, keys: Tensor) -> Tensor:
    """Returns rows that belong to the same keys on one axis, (..., g, t, X) to (..., g t, X)."""
    if len(rows.shape) == len(keys.shape):
        return rows
    *lead, heads, number, size = shape(rows)
    return ops.reshape(rows, (*lead, heads * number, size))


def _by_rows(function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, keys: Tensor) -> Tensor:
    """Returns a function of (..., t, X) and of the keys for rows that may be of several heads."""
    result = function(side_by_side(rows, keys), keys)
    if len(rows.shape) == len(keys.shape):
        return result
    return ops.reshape(result, (*shape(rows)[:-1], shape(result)[-1]))


def _of_many(rows, keys):
    number, size = shape(rows)[-2:]
    if are_known(number, size) and number <= size:
        # A `matmul` with keys whose axes are swapped copies the gradient of the keys, this that of the products, which
        # here are no more.
        return ops.einsum("...th,...sh->...ts", rows, keys)
    return ops.matmul(rows, ops.swapaxes(keys, -1, -2))


def _of_one(rows, keys):
    # Of one query a head, as in decoding, the transposes move nearly nothing; one of the keys would copy a whole cache.
    return ops.swapaxes(ops.matmul(keys, ops.swapaxes(rows, -1, -2)), -1, -2)


def scatter_weights(weights: Tensor, key_positions: Tensor, key_length: Size) -> Tensor:
    """Scatters the weights of key slots to the columns of their positions; O(T S) memory, by its nature.

    Args:
        weights: tensor (..., t, s).
        key_positions: int, broadcastable to (..., t, s). Positions outside the sequence must have weight 0.
        key_length: S, columns of the result.

    Returns:
        Tensor (..., t, S); weights of slots with the same position are added.
    """
    sizes = shape(weights)
    columns = ops.broadcast_to(in_range(key_positions, key_length), sizes)
    flat = ops.reshape(weights, (-1, sizes[-1]))  # one row a query
    rows = ops.arange(shape(flat)[0], dtype="int32")[:, None]
    index = rows * key_length + ops.reshape(columns, (-1, sizes[-1]))
    total = shape(flat)[0] * key_length
    dense = ops.segment_sum(ops.reshape(flat, (-1,)), ops.reshape(index, (-1,)), num_segments=total)
    return ops.reshape(dense, sizes[:-1] + (key_length,))


def _upstream_pair(args: tuple[Any, ...], upstream: Any) -> Any:
    """Returns the gradients of two results; JAX passes both as one argument."""
    given = args if upstream is None else upstream
    return given[0] if len(given) == 1 else given


def attend_persistent(query: Tensor, persistent: tuple[Tensor, Tensor], dropout: Dropout | None = None) -> Tensor:
    """Computes attention to persistent vectors alone, O(T M).

    Args:
        query: scaled queries (B, N, T, H).
        persistent: pair (key, value) of tensors (N, M, H) and (N, M, Hv).
        dropout: an `attend.Dropout`, or None.

    Returns:
        Tensor (B, N, T, Hv).
    """
    return attend_shared_keys(query, *persistent, dropout=dropout).output
