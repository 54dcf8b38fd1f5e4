"""The one masked softmax of the library."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.blocks import max_over, shape
from tf_sparse_attention.ops.masks import constant_mask
from tf_sparse_attention.ops.products import products_with_keys, sum_of_values
from tf_sparse_attention.ops.random_bits import derived_seed, pair_uniform
from tf_sparse_attention.ops.softmax import SELF_BIAS, lowest, softmax, softmax_of_values, softmax_with_sum
from tf_sparse_attention.types import DType, Seed, Tensor


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

    def by_position(self, queries: Tensor, keys: Tensor) -> Self:
        """Returns this dropout with the positions of queries and keys."""
        return self._replace(queries=queries, keys=keys)

    def of_persistent(self) -> "Dropout":
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
    scores = products_with_keys(ops.cast(query, dtype), ops.cast(key, dtype))
    if soft_cap is not None:
        scores = capped(scores, soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, dtype)
    row_has_key = _row_has_key(mask, row_has_key)
    if isinstance(mask, np.ndarray):
        mask = constant_mask(mask)
    if return_log_sum_exp and not return_weights and span is None and dropout is None and value_bias is None:
        output, log_sum_exp = softmax_of_values(scores, value, mask, row_has_key)
        return Attended(output, log_sum_exp=log_sum_exp)
    if mask is not None:
        scores = ops.where(mask, scores, lowest(dtype))
    weights, log_sum_exp = _softmax(scores, span, return_log_sum_exp)
    weights = ops.cast(weights, value.dtype)
    dropped = drop_weights(weights, dropout)
    output = sum_of_values(dropped, value)
    output = output if value_bias is None else output + value_bias(dropped)
    if row_has_key is not None:
        output = ops.where(row_has_key, output, 0)
        weights = ops.where(row_has_key, weights, 0) if return_weights else None
    return Attended(output, weights if return_weights else None, log_sum_exp if return_log_sum_exp else None)


def capped(scores: Tensor, soft_cap: float) -> Tensor:
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


def drop_weights(weights: Tensor, dropout: Dropout | None) -> Tensor:
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
        return softmax_with_sum(scores) if with_sum else (softmax(scores), None)
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


def with_sinks(attended: Attended, sinks: Tensor) -> Attended:
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
