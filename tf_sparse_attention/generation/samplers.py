"""Samplers of the next token, and repetition penalties: functions of logits (B, V), independent for each row.

Top-k and nucleus sampling find the highest logits without sorting the vocabulary.
"""

import numbers

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.random_bits import uniform
from tf_sparse_attention.ops.shapes import in_range
from tf_sparse_attention.types import Tensor

HIGHEST_INT32 = 2**31 - 1


def greedy(logits: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return the most likely ids; ties go to the lowest id.

    Args:
        logits: float (B, V).
        keys: not used, as `greedy` is deterministic.

    Returns:
        int32 (B,).
    """
    return ops.cast(ops.argmax(logits, axis=-1), "int32")


def sample(
    logits: Tensor,
    keys: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
) -> Tensor:
    """Sample ids from softmax(logits / temperature), restricted by `top_k`, `top_p` (nucleus) and `min_p`.

    The sample is argmax(logits / temperature + g) with Gumbel noise g = -log(-log u). Ids outside of the restrictions
    are never sampled. A row's id depends only on its own logits and key, and the same key gives the same noise on every
    backend. The noise has 2**23 values, so ids with a probability below about 6e-8 are never sampled.

    Args:
        logits: float (B, V).
        keys: uint32 (B, 2), one key per row, different for each draw: see `row_keys` and `fold_in`.
        temperature: above 1 flattens the distribution, below 1 sharpens it; 0 is `greedy`. A number, a scalar tensor,
            or float (B,). Default: 1.
        top_k: number of ids to sample from, see `keep_top_k`. None: all. Default: None.
        top_p: probability mass of the ids to sample from, see `keep_nucleus`. None: all. Default: None.
        min_p: lowest probability relative to the most likely id, see `keep_likely`. None: all. Default: None.

    Returns:
        int32 (B,).

    Raises:
        ValueError: If a number (not a tensor) is out of range.

    Example:
        >>> keys = row_keys(seed=1, batch_size=2)
        >>> ids = sample(ops.zeros((2, 258)), keys, temperature=0.8, top_p=0.9)
    """
    check_settings(temperature, top_k, top_p, min_p)
    scaled = restrict(logits, temperature, top_k, top_p, min_p)
    noise = -ops.log(-ops.log(uniform(keys, ops.shape(logits)[-1])))
    # XLA compiles `top_k` separately. It fuses an argmax with noise and restrictions into one loop, which takes minutes
    # to compile on CPUs if the vocabulary size is a small multiple of 8.
    drawn = ops.top_k(scaled + noise, 1)[1][:, 0]
    return ops.where(_a_row(temperature)[:, 0] > 0, drawn, greedy(logits))


def restrict(
    logits: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
) -> Tensor:
    """Return logits / temperature, float32 (B, V), with the lowest float32 for ids that `top_k`, `top_p` or `min_p`
    exclude."""
    logits, temperature = ops.cast(logits, "float32"), _a_row(temperature)
    # Scale first: the nucleus refers to the scaled distribution. For temperature 0, the divisor is arbitrary.
    scaled = logits / ops.where(temperature > 0, temperature, 1.0)
    if top_k is not None:
        scaled = keep_top_k(scaled, top_k)
    if top_p is not None:
        scaled = keep_nucleus(scaled, top_p)
    if min_p is not None:
        scaled = keep_likely(scaled, min_p)
    return scaled


def keep_top_k(logits: Tensor, top_k: int | Tensor) -> Tensor:
    """Keep the k highest logits of each row and set all others to the lowest float32.

    Each row keeps exactly k logits; ties go to lower ids. k >= V changes nothing.

    Note: differs from the published code, which computes the threshold over the whole batch and drops the threshold
    itself, so k = 1 keeps nothing.

    Args:
        logits: float (B, V).
        top_k: k, a positive integer, a scalar tensor, or int (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: If `top_k` is a number but not a positive integer.
    """
    check_settings(top_k=top_k)
    logits = ops.cast(logits, "float32")
    ones = ops.ones_like(logits, dtype="int32")
    return _keep(logits, top_ids(logits, ones, _a_row(top_k, "int32") - 1))


def keep_nucleus(logits: Tensor, top_p: float | Tensor) -> Tensor:
    """Keep the logits in the nucleus of each row and set all others to the lowest float32 (Holtzman et al. 2020).

    The nucleus is the smallest set of most likely ids whose total probability exceeds p. It always contains the most
    likely id. p >= 1 changes nothing.

    Args:
        logits: float (B, V).
        top_p: p in (0, 1], a number, a scalar tensor, or float (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: If `top_p` is a number out of range.
    """
    check_settings(top_p=top_p)
    logits, top_p = ops.cast(logits, "float32"), _a_row(top_p)
    # Rounded sums may exceed 1, which must not drop ids.
    kept = top_ids(logits, ops.softmax(logits, axis=-1), ops.maximum(top_p, 0)) | (top_p >= 1)
    return _keep(logits, kept)


def keep_likely(logits: Tensor, min_p: float | Tensor) -> Tensor:
    """Keep ids at least `min_p` times as likely as the best id; set others to the lowest float32 (Nguyen et al. 2024).

    min_p = 0 changes nothing; min_p = 1 keeps only the most likely id and ids tied with it.

    Args:
        logits: float (B, V).
        min_p: a number in [0, 1], a scalar tensor, or float (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: If `min_p` is a number out of range.
    """
    check_settings(min_p=min_p)
    logits = ops.cast(logits, "float32")
    # The most likely id has a share of exactly exp(0) = 1, without rounding.
    shares = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    return _keep(logits, shares >= _a_row(min_p))


def _keep(logits, kept):
    return ops.where(kept, logits, lowest("float32"))


def _a_row(value, dtype="float32"):
    return ops.reshape(ops.cast(value, dtype), (-1, 1))  # (1, 1) or (B, 1)


def check_settings(
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor | None = None,
    top_p: float | Tensor | None = None,
    min_p: float | Tensor | None = None,
) -> None:
    """Raise a `ValueError` if a setting of `sample` is a number out of range; tensors are not checked."""
    # `numbers.Real` includes numbers of other libraries, which type checkers do not know.
    if isinstance(temperature, numbers.Real) and not 0 <= temperature < float("inf"):  # type: ignore[operator]
        raise ValueError(f"`temperature` must be a number of at least 0. Received: temperature={temperature!r}.")
    if isinstance(top_k, numbers.Real) and not (isinstance(top_k, numbers.Integral) and top_k > 0):  # type: ignore[operator]
        raise ValueError(f"`top_k` must be a positive integer. Received: top_k={top_k!r}.")
    if isinstance(top_p, numbers.Real) and not 0 < top_p <= 1:  # type: ignore[operator]
        raise ValueError(f"`top_p` must be a number in (0, 1]. Received: top_p={top_p!r}.")
    if isinstance(min_p, numbers.Real) and not 0 <= min_p <= 1:  # type: ignore[operator]
        raise ValueError(f"`min_p` must be a number in [0, 1]. Received: min_p={min_p!r}.")


def top_ids(logits: Tensor, amounts: Tensor, limit: Tensor) -> Tensor:
    """Return a mask of the ids for which the amounts of all higher-ranked ids sum to at most `limit`.

    Ids are ranked by logit; ties go to lower ids. A bitwise search in 32 passes over the row finds the lowest selected
    logit, in at most a tenth of the time of a sort.

    Args:
        logits: float32 (B, V).
        amounts: int or float (B, V), not negative, equal for equal logits.
        limit: (B, 1) or (1, 1), at least 0, with the dtype of `amounts`.

    Returns:
        Bool (B, V).
    """
    order = _in_order(logits)

    def above(order_of_least):
        return ops.sum(ops.where(order > order_of_least, amounts, ops.zeros_like(amounts)), axis=-1, keepdims=True)

    def lower(bit, least):
        # Subtracts 2**31, 2**30, ..., 1, written as sums with negative numbers: 2**31 itself exceeds int32.
        lowered = least + ops.right_shift(ops.convert_to_tensor(-(2**31), "int32"), bit)
        return ops.where(above(lowered) <= limit, lowered, least)

    least = ops.full((ops.shape(logits)[0], 1), HIGHEST_INT32, dtype="int32")
    least = ops.fori_loop(0, 32, lower, least)
    equals = order == least
    before = ops.cumsum(ops.cast(equals, amounts.dtype), axis=-1) - 1
    return (order > least) | (equals & (above(least) + before * amounts <= limit))


def _in_order(logits):
    """Return int32 (B, V) in the order of the logits: float bits, inverted except for the sign if negative."""
    bits = ops.view(ops.where(logits == 0, 0.0, logits), "int32")  # -0 and 0 have different bits
    return ops.where(bits >= 0, bits, ops.bitwise_xor(bits, ops.convert_to_tensor(HIGHEST_INT32, "int32")))


def penalize_repetition(
    logits: Tensor, inputs: Tensor, index: Tensor, penalty: float | Tensor, window: int | None = 64
) -> Tensor:
    """Make recent token ids less likely (Keskar et al. 2019, section 4.1).

    For ids among the last `window` tokens, positive logits are divided by the penalty, and negative logits are
    multiplied by it. Repeated occurrences count once.

    Args:
        logits: float (B, V).
        inputs: int32 (B, L), the start id, the tokens so far, then arbitrary ids.
        index: int32 (B,), position of the last token of each row in `inputs`, equal to its number of tokens.
        penalty: a number or a scalar tensor. 1 has no effect; values above 1 reduce repetition.
        window: number of recent tokens to penalize, an integer; memory grows with it. None: the whole buffer.
            Default: 64.

    Returns:
        Float32 (B, V).
    """
    inputs, index = ops.cast(inputs, "int32"), ops.cast(index, "int32")
    length = ops.shape(inputs)[1]
    window = length if window is None else window
    positions = index[:, None] - ops.arange(window, dtype="int32")[None, :]  # (B, W), the last token first
    recent = ops.take_along_axis(inputs, in_range(positions, length), axis=1)
    logits = ops.cast(logits, "float32")
    changed = ops.where(logits > 0, logits / penalty, ops.maximum(logits * penalty, lowest("float32")))
    # Position 0 holds the start id, which is not a token of the row.
    return ops.where(_among(recent, positions > 0, logits), changed, logits)


def block_ngrams(logits: Tensor, inputs: Tensor, index: Tensor, size: int) -> Tensor:
    """Forbid repeated n-grams: ids that complete an n-gram of the row get the lowest float32 logit.

    Args:
        logits, inputs, index: see `penalize_repetition`.
        size: n, an integer of at least 1; 1 forbids any repeated token.

    Returns:
        Float32 (B, V). A row without any permitted id is returned unchanged.
    """
    inputs, index = ops.cast(inputs, "int32"), ops.cast(index, "int32")
    positions = ops.arange(ops.shape(inputs)[1], dtype="int32")[None, :]
    # The n-gram that ends at position p starts with the row's last n - 1 tokens if the tokens before p equal them.
    repeats = (positions >= size) & (positions <= index[:, None])
    for back in range(1, size):
        last = ops.take_along_axis(inputs, ops.maximum(index - back + 1, 0)[:, None], axis=1)  # (B, 1)
        before = ops.take_along_axis(
            inputs, ops.broadcast_to(ops.maximum(positions - back, 0), ops.shape(inputs)), axis=1
        )
        repeats = repeats & (before == last)
    logits = ops.cast(logits, "float32")
    blocked = ops.where(_among(inputs, repeats, logits), lowest("float32"), logits)
    return ops.where(ops.max(blocked, axis=-1, keepdims=True) > lowest("float32"), blocked, logits)


def _among(ids, chosen, logits):
    """Return whether each id of the vocabulary is in `ids` (B, W) where `chosen` (B, W) is True: bool (B, V)."""
    batch, size = ops.shape(logits)
    rows = ops.arange(batch, dtype="int32")[:, None] * (size + 1)
    index = ops.reshape(rows + ops.where(chosen, ids, size), (-1, 1))  # other ids go to an extra slot
    found = ops.scatter_update(
        ops.zeros((batch * (size + 1),), "int32"), index, ops.ones((ops.shape(index)[0],), "int32")
    )
    return ops.reshape(found, (batch, size + 1))[:, :size] > 0
