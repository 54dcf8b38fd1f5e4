"""Masked softmax attention: the function that every pattern and layer calls."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.masks import constant_mask
from tf_sparse_attention.ops.random_bits import derived_seed, pair_uniform
from tf_sparse_attention.ops.shapes import are_known, in_range, max_over, shape, take_key_heads
from tf_sparse_attention.types import DType, Seed, Size, Tensor

SELF_BIAS = -1e30  # below every score, above masked scores: a query attends to itself only if it has no other key
SOFTMAX_AXES = 5  # maximum rank of TensorFlow's softmax


class Dropout(NamedTuple):
    """Dropout of attention weights.

    With `queries` and `keys`, the draw depends on the two positions. It does not change if a later token moves other
    tokens to another slot.

    Attributes:
        rate: fraction of weights to drop, in [0, 1). The others are divided by 1 - rate.
        seed: integer or `keras.random.SeedGenerator`.
        queries: int32 (B, N, ..., t), the position of each query. None: the draw depends on the slot.
        keys: int32 (B, N, ..., s), the position of each key. None if `queries` is None.
    """

    rate: float
    seed: Seed
    queries: Tensor | None = None
    keys: Tensor | None = None

    @classmethod
    def for_call(cls, rate: float, seeds: Seed | None, training: bool | None) -> Self | None:
        """Return the dropout of a call of a layer. None: the call is not in training, or the layer has no seeds."""
        return cls(rate, seeds) if training and seeds is not None else None

    def with_positions(self, queries: Tensor, keys: Tensor) -> Self:
        """Return this dropout with the positions of queries and keys."""
        return self._replace(queries=queries, keys=keys)

    def without_positions(self) -> "Dropout":
        """Return the dropout for persistent vectors, which have no positions."""
        # An integer seed would drop the same slots as for the keys.
        seed = derived_seed(self.seed, 1) if isinstance(self.seed, int) else self.seed
        return Dropout(self.rate, seed)


class Attended(NamedTuple):
    """Result of `attend`.

    Attributes:
        output: (..., t, Hv).
        weights: (..., t, s), before dropout, as in Keras. None unless requested.
        log_sum_exp: float32 (..., t), or float64 for float64 inputs: the logarithm of the softmax denominator, the
            minimum of the dtype for a query without keys. None unless requested.
    """

    output: Tensor
    weights: Tensor | None = None
    log_sum_exp: Tensor | None = None

    def restored(self, rows: Callable[[Tensor], Tensor], dense: Callable[[Tensor], Tensor]) -> "Attended":
        """Return these results in sequence order.

        Args:
            rows: function that restores the order of queries, (B, N, G, t, X) to (B, N, T, X).
            dense: function from weights of key slots to weights of all keys, (B, N, G, t, s) to (B, N, G, t, S).
        """
        weights = None if self.weights is None else rows(dense(self.weights))
        log_sum_exp = None if self.log_sum_exp is None else rows(self.log_sum_exp[..., None])[..., 0]
        return Attended(rows(self.output), weights, log_sum_exp)


def score_dtype(dtype: DType) -> str:
    """Return the dtype of scores and softmax: float32, or float64 for float64 inputs."""
    return "float64" if dtype == "float64" else "float32"


def lowest(dtype: DType) -> float:
    """Return the most negative finite number of a floating dtype, the score of a masked pair."""
    return float(np.finfo("float64" if dtype == "float64" else "float32").min)


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
    """Compute softmax attention of every query over the keys of its group.

    out_t = sum_s p_ts v_s with p_t = softmax(q_t . k_s + bias_ts) over the s that `mask` allows. Scores are not divided
    by sqrt(H): scale the query. With a span, p_ts = e_ts / sum_s e_ts, where e_ts = span_ts exp(score_ts - m_t)
    for allowed pairs, and m_t is the largest score of query t at a positive span. The span is a factor because its
    logarithm, as a bias, would have NaN gradients where the span is 0. Scores, softmax and sums are float32 (float64
    for float64 inputs). The result has the dtype of `value`. Cost O(t s) per group.

    Args:
        query: tensor (..., t, H). Leading axes are groups (batch, heads, blocks). Grouped-query attention has one more
            axis than the keys, (..., g, t, H), for g heads that share keys; then mask, bias, span and the results
            have this axis too.
        key: tensor (..., s, H).
        value: tensor (..., s, Hv).
        mask: bool, broadcastable to (..., t, s), True where a query may attend. None allows all pairs.
        bias: float, broadcastable to (..., t, s), added to the scores.
        span: float in [0, 1], broadcastable to (..., t, s), a soft mask.
        dropout: a `Dropout`, or None.
        value_bias: function from weights (..., t, s), in the dtype of `value`, to a tensor (..., t, Hv) that is added
            to the output: the value side of relative positions.
        row_has_key: bool, broadcastable to (..., t, 1), True where the query has an allowed key. None: computed from
            the mask.
        soft_cap: c in c tanh(q_t . k_s / c), which replaces the products before the bias; or None.
        return_weights: whether to return the weights.
        return_log_sum_exp: whether to return the logarithm of the softmax denominator, for `combine`.

    Returns:
        An `Attended`. A query whose keys are all masked has output, weights and gradient 0. The mask decides this, not
        the scores.
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
    if span is not None:
        weights, log_sum_exp = _span_softmax(scores, span)
    elif return_log_sum_exp:
        with_log_sum_exp = _fused_softmax if _supports_two_results() else _softmax_and_log_sum_exp
        weights, log_sum_exp = with_log_sum_exp(scores)
    else:
        weights, log_sum_exp = softmax(scores), None
    weights = ops.cast(weights, value.dtype)
    dropped = apply_dropout(weights, dropout)
    output = weighted_sum(dropped, value)
    output = output if value_bias is None else output + value_bias(dropped)
    if row_has_key is not None:
        output = ops.where(row_has_key, output, 0)
        weights = ops.where(row_has_key, weights, 0) if return_weights else None
    return Attended(output, weights if return_weights else None, log_sum_exp if return_log_sum_exp else None)


def _capped(scores: Tensor, soft_cap: float) -> Tensor:
    """Compute c tanh(scores / c) for the soft cap c, in the dtype of the scores."""
    if keras.backend.standardize_dtype(scores.dtype) == "float64":  # on JAX, Keras's tanh of float64 is float32
        return soft_cap * (2 * ops.sigmoid(scores * (2 / soft_cap)) - 1)
    return soft_cap * ops.tanh(scores / soft_cap)


def _row_has_key(mask, known):
    """Return whether each row of a mask has an allowed key, bool (..., t, 1); None if every row has one."""
    if mask is None:
        return None
    if known is None and isinstance(mask, np.ndarray):
        has_key = np.asarray(mask.any(axis=-1, keepdims=True))
        return None if has_key.all() else constant_mask(has_key)
    return ops.any(mask, axis=-1, keepdims=True) if known is None else known


def _span_softmax(scores, span):
    """Return softmax weights multiplied by a span, and their log-sum-exp; zeros where the span is 0 for all keys."""
    dtype = keras.backend.standardize_dtype(scores.dtype)
    span = ops.cast(span, dtype)
    # The maximum is over scores with a positive span, or all their exponentials could underflow. Exponentials with a
    # span of 0 stay, limited against overflow, because the gradient of that span is not 0.
    live = ops.stop_gradient(ops.where(span > 0, scores, lowest(dtype)))
    highest = max_over(live, axis=-1, keepdims=True)
    highest = ops.where(highest > lowest(dtype), highest, 0)  # masked scores stay far below 0
    exponentials = ops.exp(ops.minimum(scores - highest, 60)) * span
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    is_positive = total > 0
    total = ops.where(is_positive, total, 1)
    log_sum_exp = ops.where(is_positive, highest + ops.log(total), lowest(dtype))
    # A product with the inverse: the gradient of a quotient would read the weights three more times.
    return exponentials * (1 / total), log_sum_exp[..., 0]


def apply_dropout(weights: Tensor, dropout: Dropout | None) -> Tensor:
    """Apply a `Dropout` to attention weights; None drops nothing."""
    if dropout is None or dropout.rate == 0:
        return weights
    if dropout.queries is None:
        return keras.random.dropout(weights, dropout.rate, seed=dropout.seed)
    kept = pair_uniform(dropout.seed, dropout.queries, dropout.keys) >= dropout.rate
    return ops.where(kept, weights / (1 - dropout.rate), 0)


def with_self_bias(bias: Tensor | None, own: Tensor) -> Tensor:
    """Add the bias -1e30 to pairs of equal position.

    A query then attends to its own key only if all other keys are masked.

    Args:
        bias: float, broadcastable to (..., t, s), or None.
        own: bool, broadcastable to (..., t, s), True where query and key have the same position.
    """
    dtype = "float32" if bias is None else score_dtype(keras.backend.standardize_dtype(bias.dtype))
    own = ops.where(own, ops.cast(SELF_BIAS, dtype), ops.cast(0, dtype))  # beyond the range of float16
    return own if bias is None else ops.cast(bias, dtype) + own


def attend_shared_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: Dropout | None = None,
    soft_cap: float | None = None,
    return_log_sum_exp: bool = False,
) -> Attended:
    """Compute unmasked attention to keys that are shared by all batch rows, or given per row.

    Args:
        query: tensor (B, N, T, H).
        key: tensor (N, M, H), or (B, N, M, H).
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
    # With one query per row, as in decoding, broadcast keys would cost more than the attention. So the batch becomes
    # the axis of queries.
    query = ops.swapaxes(query[:, :, 0], 0, 1)  # (N, B, H)
    attended = attend(query, key, value, dropout=dropout, soft_cap=soft_cap, return_log_sum_exp=return_log_sum_exp)
    output, _, log_sum_exp = (None if x is None else ops.swapaxes(x, 0, 1)[:, :, None] for x in attended)
    return Attended(output, log_sum_exp=log_sum_exp)


def attend_persistent(query: Tensor, persistent: tuple[Tensor, Tensor], dropout: Dropout | None = None) -> Tensor:
    """Compute attention to persistent vectors (Sukhbaatar et al. 2019, "Augmenting self-attention"), O(T M).

    Args:
        query: scaled queries (B, N, T, H).
        persistent: pair of tensors, key (N, M, H) and value (N, M, Hv).
        dropout: a `Dropout`, or None.

    Returns:
        Tensor (B, N, T, Hv).
    """
    return attend_shared_keys(query, *persistent, dropout=dropout).output


def apply_sinks(attended: Attended, sinks: Tensor) -> Attended:
    """Add attention sinks: one more logit per head in the softmax, without a value.

    Queries that can attend only to themselves ignore the sink: their log-sum-exp contains the bias -1e30, so it cannot
    be compared with the sink.

    Args:
        attended: an `Attended` of (B, N, T, Hv) with the log-sum-exp.
        sinks: float (N,), the logit of each head.
    """
    output, weights = attended[:2]
    log_sum_exp = cast(Tensor, attended.log_sum_exp)  # never None here
    sinks = ops.cast(sinks, log_sum_exp.dtype)[:, None]
    kept = ops.where(log_sum_exp < SELF_BIAS / 2, 1.0, ops.sigmoid(log_sum_exp - sinks))[..., None]
    weights = None if weights is None else weights * ops.cast(kept, weights.dtype)
    return Attended(output * ops.cast(kept, output.dtype), weights, ops.logaddexp(log_sum_exp, sinks))


def combine_attended(parts: Sequence[Attended]) -> Attended:
    """Merge attention to several sets of keys into attention to their union; a key in n sets counts n times.

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
    """Merge outputs over disjoint sets of keys into the output over their union, exactly.

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


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis of scores (..., t, s)."""
    if scores.shape[-1] == 1:  # Keras warns about this size, which is valid for a sequence of one token
        return ops.exp(scores - scores)
    if len(scores.shape) <= SOFTMAX_AXES:
        return ops.softmax(scores, axis=-1)
    sizes = shape(scores)
    return ops.reshape(ops.softmax(ops.reshape(scores, (-1, *sizes[-2:])), axis=-1), sizes)


def attend_scores(
    scores: Tensor, value: Tensor, mask: Tensor | None = None, row_has_key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute softmax attention from scores, and the log-sum-exp, with a gradient as in FlashAttention.

    Let do and dl be the gradients of the output and the log-sum-exp, and dp = v . do that of the weights p. The
    gradient of the scores is p (dp - delta + dl) with delta = rowsum(o * do) (Dao et al. 2022, "FlashAttention",
    appendix B.2). This delta equals the sum of p dp over all keys, but is computed from the output instead of the
    weights, except in half precision. The weights of masked keys are 0, so the gradient needs no mask.

    Args:
        scores: (..., t, s), or (..., g, t, s) for g heads that share values.
        value: (..., s, Hv).
        mask: bool, broadcastable to the scores, True for allowed pairs. None: all.
        row_has_key: bool, broadcastable to (..., t, 1), True where a query has an allowed key. It may be True for an
            empty row only if the result of that row is not used. None: everywhere.

    Returns:
        Pair of the output (..., t, Hv) in the dtype of the values, zeros where a query has no key, and the log-sum-exp
        (..., t).
    """
    if not _supports_two_results():
        return _attend_scores(scores, value, mask, row_has_key)[:2]
    # Masks are arguments, not closures: JAX may differentiate after the trace (`jit`, `remat`, loops) has ended, when
    # captured tracers are invalid.
    masks = {name: x for name, x in (("mask", mask), ("row_has_key", row_has_key)) if x is not None}

    @ops.custom_gradient
    def fused(scores, value, *masks_given):
        given = dict(zip(masks, masks_given, strict=True))
        output, log_sum_exp, weights = _attend_scores(scores, value, **given)

        def grad(*args, upstream=None):
            d_output, d_log_sum_exp = _upstream_pair(args, upstream)
            if row_has_key is not None:
                d_output = ops.where(given["row_has_key"], d_output, 0)
                d_log_sum_exp = ops.where(given["row_has_key"][..., 0], d_log_sum_exp, 0)
            d_weights = ops.cast(query_key_products(d_output, value), weights.dtype)
            # In half precision, delta must be the mean of the rounded products, so that their errors cancel.
            is_exact = output.dtype == weights.dtype
            delta = ops.sum(d_output * output if is_exact else weights * d_weights, axis=-1)
            d_scores = weights * (d_weights + (d_log_sum_exp - delta)[..., None])
            rows = _merge_shared_heads(ops.cast(weights, value.dtype), value)
            d_value = ops.matmul(ops.swapaxes(rows, -1, -2), _merge_shared_heads(d_output, value))
            return d_scores, d_value, *(None for _ in masks_given)

        return (output, log_sum_exp), grad

    return fused(scores, value, *masks.values())


def _supports_two_results():
    """Return whether the backend supports custom gradients of functions with two results; torch does not."""
    return keras.backend.backend() != "torch"


def _upstream_pair(args: tuple[Any, ...], upstream: Any) -> Any:
    """Return the upstream gradients of two results; JAX passes both as one argument."""
    given = args if upstream is None else upstream
    return given[0] if len(given) == 1 else given


@ops.custom_gradient
def _fused_softmax(scores):
    """Compute `_softmax_and_log_sum_exp` with the gradient p (dp - sum p dp + dl), half the work of both steps."""
    weights, log_sum_exp = _softmax_and_log_sum_exp(scores)

    def grad(*args, upstream=None):
        d_weights, d_log_sum_exp = _upstream_pair(args, upstream)
        mean = ops.sum(weights * d_weights, axis=-1, keepdims=True)
        return weights * (d_weights + (d_log_sum_exp[..., None] - mean))

    return (weights, log_sum_exp), grad


def _softmax_and_log_sum_exp(scores):
    """Return the softmax of scores (..., s) over the last axis, and the log-sum-exp (...)."""
    weights = softmax(scores)
    # The largest weight is 1 / sum exp(score - max), so no second pass over exponentials is needed.
    return weights, max_over(scores, axis=-1) - ops.log(max_over(weights, axis=-1))


def _attend_scores(scores, value, mask=None, row_has_key=None):
    """Return the results of `attend_scores`, and the weights in the dtype of the scores."""
    if mask is not None:
        scores = ops.where(mask, scores, lowest(keras.backend.standardize_dtype(scores.dtype)))
    weights, log_sum_exp = _softmax_and_log_sum_exp(scores)
    output = weighted_sum(ops.cast(weights, value.dtype), value)
    return output if row_has_key is None else ops.where(row_has_key, output, 0), log_sum_exp, weights


def query_key_products(rows: Tensor, keys: Tensor) -> Tensor:
    """Return the products q_t . k_s of rows (..., t, H) and keys (..., s, H): (..., t, s).

    Rows of g heads that share keys have one more axis, (..., g, t, H).
    """
    return _with_merged_heads(_product_of_one if rows.shape[-2] == 1 else _product_of_many, rows, keys)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return sum_s p_ts v_s of weights (..., t, s) or (..., g, t, s) and values (..., s, Hv)."""
    return _with_merged_heads(ops.matmul, weights, values)


def _merge_shared_heads(rows: Tensor, keys: Tensor) -> Tensor:
    """Merge the axis of heads that share keys into the axis of rows, (..., g, t, X) to (..., g t, X)."""
    if len(rows.shape) == len(keys.shape):
        return rows
    *lead, heads, number, size = shape(rows)
    return ops.reshape(rows, (*lead, heads * number, size))


def _with_merged_heads(function: Callable[[Tensor, Tensor], Tensor], rows: Tensor, keys: Tensor) -> Tensor:
    """Apply a function of rows (..., t, X) and keys to rows with or without an axis of heads that share keys."""
    result = function(_merge_shared_heads(rows, keys), keys)
    if len(rows.shape) == len(keys.shape):
        return result
    return ops.reshape(result, (*shape(rows)[:-1], shape(result)[-1]))


def _product_of_many(rows, keys):
    number, size = shape(rows)[-2:]
    if are_known(number, size) and number <= size:
        # The gradient of a `matmul` with transposed keys copies the gradient of the keys. That of the einsum copies the
        # gradient of the products, which is no larger here.
        return ops.einsum("...th,...sh->...ts", rows, keys)
    return ops.matmul(rows, ops.swapaxes(keys, -1, -2))


def _product_of_one(rows, keys):
    # With one query per head, as in decoding, these transposes are almost free. Transposed keys would copy a cache.
    return ops.swapaxes(ops.matmul(keys, ops.swapaxes(rows, -1, -2)), -1, -2)


def scatter_weights(weights: Tensor, key_positions: Tensor, key_length: Size) -> Tensor:
    """Scatter the weights of key slots to the columns of a dense matrix, O(T S).

    Args:
        weights: tensor (..., t, s).
        key_positions: int, broadcastable to (..., t, s), the column of each slot. Positions outside the sequence must
            have weight 0.
        key_length: S, columns of the result.

    Returns:
        Tensor (..., t, S). Weights of slots with the same position are added.
    """
    sizes = shape(weights)
    columns = ops.broadcast_to(in_range(key_positions, key_length), sizes)
    flat = ops.reshape(weights, (-1, sizes[-1]))  # one row per query
    rows = ops.arange(shape(flat)[0], dtype="int32")[:, None]
    index = rows * key_length + ops.reshape(columns, (-1, sizes[-1]))
    total = shape(flat)[0] * key_length
    dense = ops.segment_sum(ops.reshape(flat, (-1,)), ops.reshape(index, (-1,)), num_segments=total)
    return ops.reshape(dense, sizes[:-1] + (key_length,))


class _Groups(NamedTuple):
    """M groups of g heads, which `attend` takes as an axis of the queries, (B, M, G, g, t, H)."""

    num_groups: int
    size: int

    def merge(self, x: Tensor | None) -> Tensor | None:
        """Reshape a tensor that broadcasts to (B, N, G, t, X) to one that broadcasts to (B, M, G, g, t, X)."""
        if x is None or len(x.shape) < 3:
            return x
        xp = np if isinstance(x, np.ndarray) else ops  # constant masks stay constants
        if len(x.shape) == 3 or x.shape[-4] == 1:
            return xp.expand_dims(x, -3)
        *batch, _, groups, rows, size = shape(x)
        x = xp.reshape(x, (*batch, self.num_groups, self.size, groups, rows, size))
        return xp.swapaxes(x, -4, -3)

    def split(self, x: Tensor | None, axis: int = -3) -> Tensor | None:
        """Undo `merge`; `axis` is the axis of the heads of a group."""
        if x is None:
            return None
        x = ops.swapaxes(x, axis, axis - 1)
        batch, _, _, *rest = shape(x)
        return ops.reshape(x, (batch, self.num_groups * self.size, *rest))

    def dropout(self, dropout: Dropout | None) -> Dropout | None:
        """Return a position-dependent dropout with one number per pair of head and position."""
        if dropout is None or dropout.queries is None or dropout.keys is None:
            return dropout
        queries = ops.squeeze(self.merge(dropout.queries[..., None]), -1)
        heads = ops.arange(self.size, dtype="int32")[:, None]
        # Heads of a group have the same keys in the same slots.
        keys = take_key_heads(dropout.keys, self.num_groups)
        return dropout.with_positions(queries * self.size + heads, ops.expand_dims(keys, 3))


def attend_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    span: Tensor | None = None,
    row_has_key: Tensor | None = None,
    value_bias: Callable[[Tensor], Tensor] | None = None,
    dropout: Dropout | None = None,
    **options: Any,
) -> Attended:
    """Compute `attend` for arranged heads; heads of a group share keys and values without a copy.

    Args:
        query: scaled queries (B, N, G, t, H).
        key: (B, M, G, s, H).
        value: (B, M, G, s, Hv).
        mask, bias, span, row_has_key, value_bias, dropout: as in `attend`, for N heads.
        **options: further arguments of `attend`.

    Returns:
        An `Attended` for N heads.
    """
    given: dict[str, Any] = {"mask": mask, "bias": bias, "span": span, "row_has_key": row_has_key}
    groups = _Groups(key.shape[1], query.shape[1] // key.shape[1])
    if groups.size == 1:
        return attend(query, key, value, value_bias=value_bias, dropout=dropout, **given, **options)

    def grouped_value_bias(weights):
        return groups.merge(value_bias(groups.split(weights)))  # type: ignore[misc]  # not called if None

    output, weights, log_sum_exp = attend(
        groups.merge(query),
        key,
        value,
        value_bias=None if value_bias is None else grouped_value_bias,
        dropout=groups.dropout(dropout),
        **{name: groups.merge(x) for name, x in given.items()},  # type: ignore[arg-type]  # passed by name
        **options,
    )
    return Attended(groups.split(output), groups.split(weights), groups.split(log_sum_exp, axis=-2))
