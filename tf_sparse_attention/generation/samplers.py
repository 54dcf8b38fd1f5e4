"""Choosing the next token: functions of logits (B, V) that treat each row by itself."""

import numbers

from keras import ops

from tf_sparse_attention.generation.random_keys import uniform
from tf_sparse_attention.generation.top_ids import top_ids
from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.types import Tensor


def greedy(logits: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return the most likely ids, the lowest of equals.

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
    """Draw ids from softmax(logits / temperature), cut to the `top_k` best, the nucleus of `top_p`, and by `min_p`.

    The draw is argmax(logits / temperature + g) with Gumbel noise g = -log(-log u), which never picks an id that was
    cut away. A row's id depends on its own logits and key alone, and the same key gives the same noise on every
    backend. The noise has 2**23 values, so an id of probability below about 6e-8 is never drawn.

    Args:
        logits: float (B, V).
        keys: uint32 (B, 2), one key a row, another one for each draw: `row_keys`, `fold_in`.
        temperature: above 1 flattens, below 1 sharpens; 0 is `greedy`. A number, a scalar tensor, or (B,). Default 1.
        top_k: number of ids to draw from, see `keep_top_k`. None (default): all.
        top_p: probability of the ids to draw from, see `keep_nucleus`. None (default): all.
        min_p: least share of the probability of the best id, see `keep_likely`. None (default): any.

    Returns:
        int32 (B,).

    Raises:
        ValueError: for a number (not a tensor) out of range.

    Example:
        >>> keys = row_keys(seed=1, batch_size=2)
        >>> ids = sample(ops.zeros((2, 258)), keys, temperature=0.8, top_p=0.9)
    """
    check_settings(temperature, top_k, top_p, min_p)
    logits = ops.cast(logits, "float32")
    temperature = _a_row(temperature)
    # Before cutting: the nucleus is that of the distribution drawn from. What 0 is replaced by does not matter.
    scaled = logits / ops.where(temperature > 0, temperature, 1.0)
    if top_k is not None:
        scaled = keep_top_k(scaled, top_k)
    if top_p is not None:
        scaled = keep_nucleus(scaled, top_p)
    if min_p is not None:
        scaled = keep_likely(scaled, min_p)
    noise = -ops.log(-ops.log(uniform(keys, ops.shape(logits)[-1])))
    # By `top_k`, which XLA computes apart: an argmax takes noise and cuts into its one loop, and where the vocabulary
    # is a small multiple of 8 the compiler of CPUs is busy with that for minutes.
    drawn = ops.top_k(scaled + noise, 1)[1][:, 0]
    return ops.where(temperature[:, 0] > 0, drawn, greedy(logits))


def keep_top_k(logits: Tensor, top_k: int | Tensor) -> Tensor:
    """Lower all but the k best logits of each row to the least float32.

    Exactly k are kept in every row; of equal logits the lower ids are better. At k >= V nothing changes.

    Note: differs from the published code, which takes its threshold over the whole batch and drops the threshold
    itself, so that k = 1 keeps nothing.

    Args:
        logits: float (B, V).
        top_k: k, a positive integer, a scalar tensor, or (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: for an integer below 1.
    """
    check_settings(top_k=top_k)
    logits = ops.cast(logits, "float32")
    ones = ops.ones_like(logits, dtype="int32")
    return _keep(logits, top_ids(logits, ones, _a_row(top_k, "int32") - 1))


def keep_nucleus(logits: Tensor, top_p: float | Tensor) -> Tensor:
    """Lower the logits outside the nucleus of each row to the least float32 (Holtzman et al. 2020).

    From the best id down, an id is dropped if those before it have a probability of more than p together: the nucleus
    is the fewest best ids whose probability exceeds p, so the best is always kept. At p >= 1 nothing changes.

    Args:
        logits: float (B, V).
        top_p: p in (0, 1], a number, a scalar tensor, or (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: for a number out of range.
    """
    check_settings(top_p=top_p)
    logits, top_p = ops.cast(logits, "float32"), _a_row(top_p)
    # Sums that are rounded up may exceed 1 and are no reason to drop anything.
    kept = top_ids(logits, ops.softmax(logits, axis=-1), ops.maximum(top_p, 0)) | (top_p >= 1)
    return _keep(logits, kept)


def keep_likely(logits: Tensor, min_p: float | Tensor) -> Tensor:
    """Lower the logits of ids less likely than `min_p` times the best one to the least float32 (Nguyen et al. 2024).

    At min_p = 0 nothing changes; at 1 the best ids are left, all of equals.

    Args:
        logits: float (B, V).
        min_p: a number in [0, 1], a scalar tensor, or (B,).

    Returns:
        Float32 (B, V).

    Raises:
        ValueError: for a number out of range.
    """
    check_settings(min_p=min_p)
    logits = ops.cast(logits, "float32")
    # The best one has a share of exp(0) = 1 of itself, whatever the rounding.
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
    """Raise a `ValueError` for a setting of `sample` that is a number, not a tensor, and out of range."""
    # Tensors are not looked at. Numbers of other libraries are numbers here, which types cannot say.
    if isinstance(temperature, numbers.Real) and not 0 <= temperature < float("inf"):  # type: ignore[operator]
        raise ValueError(f"`temperature` must be a number of at least 0. Received: temperature={temperature!r}.")
    if isinstance(top_k, numbers.Real) and not (isinstance(top_k, numbers.Integral) and top_k > 0):  # type: ignore[operator]
        raise ValueError(f"`top_k` must be a positive integer. Received: top_k={top_k!r}.")
    if isinstance(top_p, numbers.Real) and not 0 < top_p <= 1:  # type: ignore[operator]
        raise ValueError(f"`top_p` must be a number in (0, 1]. Received: top_p={top_p!r}.")
    if isinstance(min_p, numbers.Real) and not 0 <= min_p <= 1:  # type: ignore[operator]
        raise ValueError(f"`min_p` must be a number in [0, 1]. Received: min_p={min_p!r}.")
