"""The decoding loop: one compiled program for every length up to that of its buffer."""

from keras import ops

from tf_sparse_attention.generation.random_keys import fold_in, row_keys


def generate(step, prompt_ids, prompt_lengths, max_length, sampler, seed=0, stop_id=None, start_id=0, state=()):
    """Continues each row of a batch of prompts, token by token.

    The model's inputs are the tokens x_1, x_2, ... moved right by one behind the start id; at position t it says what
    x_{t+1} is likely to be. A row of n tokens therefore goes on from its logits at position n, an empty one from those
    at position 0, where the input is the start id. Rows advance together, each at its own position, and stop by
    themselves: a row's tokens do not depend on the other rows beyond the rounding inside `step`.

    The loop is a `while_loop` over a buffer of fixed size. Inside a compiled function `max_length` and
    `prompt_lengths` may be tensors, so that one program serves all lengths up to L; `bucket_length` gives sizes of
    buffers for which few programs are enough.

    Args:
        step: function (inputs, index, state) -> (logits, state). `inputs` is the whole buffer, int32 (B, L): start id,
            tokens so far, then 0. `index`, int32 (B,), is the position in it whose logits, float (B, V), are wanted;
            what lies behind must not matter. A step with a cache reads `inputs` at `index` alone and keeps the cache
            in `state`; for a row that is finished it is asked for the same position again.
        prompt_ids: int (B, L), prompts from the left; what lies behind `prompt_lengths` does not matter.
        prompt_lengths: int (B,), tokens of each prompt, from 0 to L.
        max_length: tokens of a row after which it stops, prompt included, at most L: an integer, a scalar tensor or
            (B,). A prompt that is as long already is returned as it is.
        sampler: function (logits, keys) -> int (B,), for instance `greedy` or
            `functools.partial(sample, temperature=0.8)`; the keys differ for each row and position.
        seed: see `row_keys`. Default 0.
        stop_id: id after which a row stops; it is kept as the row's last token. None (default): none.
        start_id: id that the model reads before the first token. Default 0.
        state: tensors in any nested structure that `step` takes and returns, their shapes constant. Default empty.

    Returns:
        `(token_ids, lengths)`: int32 (B, L), prompt and continuation, then 0; int32 (B,), tokens of each row.

    Raises:
        ValueError: if `prompt_ids` is not of rank 2, or `max_length` is an integer out of [1, L].

    Example:
        >>> def count_up(inputs, index, state):
        ...     last = ops.take_along_axis(inputs, index[:, None], axis=1)[:, 0]
        ...     return ops.one_hot(last + 1, 10), state
        >>> token_ids, lengths = generate(count_up, [[4, 0, 0, 0]], [1], 4, greedy, stop_id=6)
        >>> np.array(token_ids), np.array(lengths)
        (array([[4, 5, 6, 0]], dtype=int32), array([3], dtype=int32))
    """
    prompt_ids = ops.cast(prompt_ids, "int32")
    _check(prompt_ids, max_length)
    batch_size, length = ops.shape(prompt_ids)
    limit = ops.minimum(ops.cast(max_length, "int32"), length)
    index = ops.minimum(ops.cast(prompt_lengths, "int32"), length)
    keys = row_keys(seed, batch_size)
    places = ops.arange(length + 1, dtype="int32")[None, :]
    start = ops.full((batch_size, 1), start_id, dtype="int32")
    buffer = ops.where(places <= index[:, None], ops.concatenate([start, prompt_ids], axis=1), 0)  # (B, L + 1)

    def go_on(index, finished, buffer, state):
        return ops.logical_not(ops.all(finished))

    def advance(index, finished, buffer, state):
        # A row that fills the buffer is finished, and the position behind the last one is never its own to ask for.
        logits, state = step(buffer[:, :-1], ops.minimum(index, length - 1), state)
        token = ops.cast(sampler(logits, fold_in(keys, index)), "int32")
        writes = (places == index[:, None] + 1) & ~finished[:, None]
        buffer = ops.where(writes, token[:, None], buffer)
        index = ops.where(finished, index, index + 1)
        finished = finished | (index >= limit)
        if stop_id is not None:
            finished = finished | (token == stop_id)
        return index, finished, buffer, state

    index, _, buffer, _ = ops.while_loop(go_on, advance, (index, index >= limit, buffer, state))
    return buffer[:, 1:], index


def bucket_length(length, smallest=64):
    """Returns the least of the sizes `smallest` * (1, 1.5, 2, 3, 4, 6, ...) that is no less than `length`.

    Buffers of these sizes cost at most half as much again as needed, and all lengths up to 64 * 2**n need only 2 n + 1
    compiled programs.

    Args:
        length: tokens to hold, an integer.
        smallest: size of the smallest buffer, 1 or even. Default 64.
    """
    size = smallest
    while size < length:
        size, between = 2 * size, size + size // 2
        if between >= length:
            return between
    return size


def _check(prompt_ids, max_length):
    if len(prompt_ids.shape) != 2:
        raise ValueError(f"`prompt_ids` must have rank 2. Received: prompt_ids of shape {tuple(prompt_ids.shape)}.")
    length = prompt_ids.shape[1]
    if isinstance(max_length, int) and not 1 <= max_length <= (max_length if length is None else length):
        raise ValueError(
            "`max_length` must be from 1 to the size of the buffer of prompts. "
            f"Received: max_length={max_length}, prompt_ids of shape {tuple(prompt_ids.shape)}."
        )
