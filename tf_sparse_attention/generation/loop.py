"""Decoding loop: one compiled program for all lengths up to the size of its buffer."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tf_sparse_attention.ops.random_bits import fold_in, row_keys
from tf_sparse_attention.types import Tensor


class Progress(NamedTuple):
    """State of the decoding loop, created by `begin` and updated by `advance`.

    Attributes:
        inputs: int32 (B, L + 1), the model inputs: the start id, the tokens so far, then 0.
        log_probs: float32 (B, L), the log-probability of each generated token under the logits of the step (before
            temperature, `top_k`, `top_p`, `min_p` and `adjust`); 0 for prompts and after the end.
        lengths: int32 (B,), number of tokens per row.
        finished: bool (B,), True for rows that have stopped.
        limits: int32 (B,), maximal number of tokens per row.
        state: state of the step, such as its KV cache.
    """

    inputs: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor
    limits: Tensor
    state: Any = ()

    @property
    def token_ids(self) -> Tensor:
        """The rows, int32 (B, L): prompt and continuation, then 0."""
        return self.inputs[:, 1:]


class Generated(NamedTuple):
    """Result of `generate`.

    Attributes:
        token_ids: int32 (B, L), prompt and continuation, then 0.
        lengths: int32 (B,), number of tokens per row.
        log_probs: float32 (B, L), see `Progress`.
    """

    token_ids: Tensor
    lengths: Tensor
    log_probs: Tensor


def generate(
    step: Callable,
    prompt_ids: Tensor,
    prompt_lengths: Tensor,
    max_length: int | Tensor,
    sampler: Callable,
    seed: int | Tensor = 0,
    stop_token_ids: Sequence[int] | Tensor = (),
    start_id: int = 0,
    state: Any = (),
    adjust: Callable | None = None,
) -> Generated:
    """Extend each prompt of a batch, token by token.

    The model's inputs are the start id followed by the tokens x_1, x_2, ...; its logits at position t predict x_{t+1}.
    A row of n tokens continues from the logits at position n. An empty row continues from position 0, where the input
    is the start id. All rows advance in the same step, each at its own position, and stop independently. A row's tokens
    do not depend on other rows, up to rounding in `step`.

    The loop is a `while_loop` over a buffer of fixed size. Inside a compiled function, `max_length` and
    `prompt_lengths` may be tensors, so one program handles all lengths up to L. `bucket_length` returns buffer sizes
    that need few programs.

    Args:
        step: function (inputs, index, state) -> (logits, state). `inputs` is the whole buffer, int32 (B, L): start id,
            tokens so far, then 0. `index`, int32 (B,), is the position in the buffer of the returned logits,
            float (B, V). The logits must not depend on later positions and must not all be -inf. A step with a cache
            reads `inputs` only at `index` and keeps the cache in `state`. Finished rows repeat their last position.
        prompt_ids: int (B, L), left-aligned prompts; ids after `prompt_lengths` are ignored.
        prompt_lengths: int (B,), number of tokens per prompt, from 0 to L.
        max_length: maximal number of tokens per row, including the prompt, at most L: an integer, a scalar tensor or
            int (B,). A prompt of this length or longer is returned unchanged.
        sampler: function (logits, keys) -> int (B,), for instance `greedy` or
            `functools.partial(sample, temperature=0.8)`. Keys differ for each row and position.
        seed: see `row_keys`. Default: 0.
        stop_token_ids: ids that end a row, a sequence of integers or an integer tensor (S,); negative ids are ignored.
            The stop id is the row's last token. Default: none.
        start_id: id of the input before the first token. Default: 0.
        state: nested structure of tensors with constant shapes, which `step` takes and returns. Default: empty.
        adjust: function (logits, inputs, index) -> logits, float (B, V), applied before the sampler, for instance
            `functools.partial(penalize_repetition, penalty=1.2)`. None: no change. Default: None.

    Returns:
        A `Generated`.

    Raises:
        ValueError: If `prompt_ids` does not have rank 2, or `max_length` is an integer outside of [1, L].

    Example:
        >>> def count_up(inputs, index, state):
        ...     last = ops.take_along_axis(inputs, index[:, None], axis=1)[:, 0]
        ...     return ops.one_hot(last + 1, 10), state
        >>> rows = generate(count_up, [[4, 0, 0, 0]], [1], 4, greedy, stop_token_ids=[6])
        >>> np.array(rows.token_ids), np.array(rows.lengths)
        (array([[4, 5, 6, 0]], dtype=int32), array([3], dtype=int32))
    """
    progress = begin(prompt_ids, prompt_lengths, max_length, start_id, state)
    keys = row_keys(seed, ops.shape(progress.lengths)[0])
    progress = advance(progress, step, sampler, keys, stop_token_ids, adjust=adjust)
    return Generated(progress.token_ids, progress.lengths, progress.log_probs)


def begin(
    prompt_ids: Tensor, prompt_lengths: Tensor, max_length: int | Tensor, start_id: int = 0, state: Any = ()
) -> Progress:
    """Return the `Progress` of prompts before the first generated token; for the arguments, see `generate`."""
    prompt_ids = ops.cast(prompt_ids, "int32")
    _check(prompt_ids, max_length)
    batch_size, length = ops.shape(prompt_ids)
    lengths = ops.minimum(ops.cast(prompt_lengths, "int32"), length)
    limits = ops.broadcast_to(ops.minimum(ops.cast(max_length, "int32"), length), ops.shape(lengths))
    start = ops.full((batch_size, 1), start_id, dtype="int32")
    inputs = ops.concatenate([start, prompt_ids], axis=1)
    return Progress(
        inputs=ops.where(_positions(inputs) <= lengths[:, None], inputs, 0),
        log_probs=ops.zeros_like(prompt_ids, dtype="float32"),
        lengths=lengths,
        finished=lengths >= limits,
        limits=limits,
        state=state,
    )


def advance(
    progress: Progress,
    step: Callable,
    sampler: Callable,
    keys: Tensor,
    stop_token_ids: Sequence[int] | Tensor = (),
    num_tokens: int | Tensor | None = None,
    adjust: Callable | None = None,
    first: int | Tensor = 0,
) -> Progress:
    """Generate tokens until all rows are finished, or `num_tokens` tokens per row are added.

    Args:
        progress: a `Progress`.
        step, sampler, stop_token_ids, adjust: see `generate`.
        keys: uint32 (B, 2), one key per row, the same in every call: see `row_keys`.
        num_tokens: maximal number of tokens to add per row, an integer or a scalar tensor. None: no limit.
            Default: None.
        first: position of the first input in a longer sequence, used for the keys of the sampler. Default: 0.

    Returns:
        The updated `Progress`.
    """
    positions = _positions(progress.inputs)

    def condition(count, progress):
        unfinished = ops.logical_not(ops.all(progress.finished))
        return unfinished if num_tokens is None else ops.logical_and(unfinished, count < num_tokens)

    def add(count, progress):
        inputs, log_probs, index, finished, limits, state = progress
        read = inputs[:, :-1]
        # A row that fills the buffer is finished, so the position after the buffer is never needed.
        at = ops.minimum(index, ops.shape(read)[1] - 1)
        logits, state = step(read, at, state)
        adjusted = logits if adjust is None else adjust(logits, read, at)
        token = _checked_token(sampler(adjusted, fold_in(keys, index + first)), logits)
        writes = (positions == index[:, None] + 1) & ~finished[:, None]
        inputs = ops.where(writes, token[:, None], inputs)
        log_probs = ops.where(writes[:, 1:], log_prob_of(logits, token)[:, None], log_probs)
        index = ops.where(finished, index, index + 1)
        finished = finished | (index >= limits) | is_stop(token, stop_token_ids)
        return count + 1, Progress(inputs, log_probs, index, finished, limits, state)

    return ops.while_loop(condition, add, (ops.zeros((), "int32"), progress))[1]


def log_prob_of(logits: Tensor, token: Tensor) -> Tensor:
    """Return the log-probabilities, float32 (B,), of tokens, int32 (B,), under logits (B, V)."""
    logits = ops.cast(logits, "float32")
    chosen = ops.take_along_axis(logits, token[:, None], axis=1)[:, 0]
    return chosen - ops.logsumexp(logits, axis=-1)


def is_stop(token: Tensor, stop_token_ids: Sequence[int] | Tensor) -> Tensor:
    """Return whether each token is in `stop_token_ids` (see `generate`), bool with the shape of the tokens."""
    if isinstance(stop_token_ids, (tuple, list)):
        stop_token_ids = np.array(stop_token_ids, "int32")
    return ops.any(ops.equal(token[..., None], ops.convert_to_tensor(stop_token_ids, "int32")), axis=-1)


def bucket_length(length: int, smallest: int = 64) -> int:
    """Return the smallest of the sizes `smallest` * (1, 1.5, 2, 3, 4, 6, ...) that is at least `length`.

    A buffer above the smallest size is less than 1.5 times as long as necessary. All lengths up to `smallest` * 2**n
    need only 2 n + 1 compiled programs.

    Args:
        length: number of tokens, an integer.
        smallest: size of the smallest buffer, 1 or even. Default: 64.
    """
    size = smallest
    while size < length:
        size, between = 2 * size, size + size // 2
        if between >= length:
            return between
    return size


def _checked_token(token, logits):
    """Return the ids from a sampler as int32 (B,).

    Raises:
        ValueError: If the dtype or the static shape is invalid.
    """
    dtype, sizes = keras.backend.standardize_dtype(token.dtype), tuple(token.shape)
    rows = logits.shape[0]
    if "int" not in dtype or len(sizes) != 1 or (None not in (sizes[0], rows) and sizes[0] != rows):
        raise ValueError(f"`sampler` must return ids, int (B,) with B={rows}. Received: {dtype} {sizes}.")
    return ops.cast(token, "int32")


def _positions(inputs):
    return ops.arange(ops.shape(inputs)[1], dtype="int32")[None, :]


def _check(prompt_ids, max_length):
    if len(prompt_ids.shape) != 2:
        raise ValueError(f"`prompt_ids` must have rank 2. Received: prompt_ids of shape {tuple(prompt_ids.shape)}.")
    length = prompt_ids.shape[1]
    if isinstance(max_length, int) and not 1 <= max_length <= (max_length if length is None else length):
        raise ValueError(
            "`max_length` must be between 1 and the length of `prompt_ids`. "
            f"Received: max_length={max_length}, prompt_ids of shape {tuple(prompt_ids.shape)}."
        )
