"""Beam search: an approximate search for the most likely sequences, with K beams per row."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from tf_sparse_attention.generation.loop import begin, is_stop
from tf_sparse_attention.types import Tensor

UNLIKELY = -1e30  # the score of an empty beam; sums with log-probabilities stay finite


class Beams(NamedTuple):
    """K sequences per row.

    Attributes:
        inputs: int32 (B, K, L + 1), the start id, the tokens so far, then 0.
        log_probs: float32 (B, K, L), the log-probability of each generated token, 0 elsewhere.
        scores: float32 (B, K).
        lengths: int32 (B, K), number of tokens per beam.
    """

    inputs: Tensor
    log_probs: Tensor
    scores: Tensor
    lengths: Tensor

    def take(self, beams: Tensor) -> "Beams":
        """Return the beams at indices int32 (B, K')."""

        def taken(x):
            index = ops.reshape(beams, (*ops.shape(beams), *[1] * (len(x.shape) - 2)))
            return ops.take_along_axis(x, ops.broadcast_to(index, (*ops.shape(beams), *ops.shape(x)[2:])), axis=1)

        return Beams(*(taken(x) for x in self))

    def append(self, tokens: Tensor, log_probs: Tensor) -> "Beams":
        """Append one token per beam, int32 (B, K), and add its log-probability, float32 (B, K), to the score."""
        at = ops.arange(ops.shape(self.inputs)[2], dtype="int32") == self.lengths[..., None] + 1
        return Beams(
            ops.where(at, tokens[..., None], self.inputs),
            ops.where(at[..., 1:], log_probs[..., None], self.log_probs),
            self.scores + log_probs,
            self.lengths + 1,
        )

    def concatenate(self, other: "Beams") -> "Beams":
        """Return the beams of both, concatenated along K."""
        return Beams(*(ops.concatenate(pair, axis=1) for pair in zip(self, other, strict=True)))


def beam_search(
    step: Callable,
    prompt_ids: Tensor,
    prompt_lengths: Tensor,
    max_length: int | Tensor,
    num_beams: int,
    length_penalty: float | Tensor = 1.0,
    stop_token_ids: Sequence[int] | Tensor = (),
    start_id: int = 0,
    state: Any = (),
    adjust: Callable | None = None,
) -> Beams:
    """Search for the most likely continuation of each row, with `num_beams` candidates per row.

    A sequence ends with a stop id or at `max_length`. The score of a finished sequence is its log-probability divided
    by (number of generated tokens) ** `length_penalty`. The search of a row ends when no active beam can exceed the
    lowest score of `num_beams` finished sequences. Ties go to the lower beam, then the lower id. Each token costs one
    step of B * K rows and one copy of their state, reordered by beam.

    Args:
        step: see `generate`; called with B * K rows, the K rows of each prompt being consecutive.
        prompt_ids, prompt_lengths, max_length, stop_token_ids, start_id, adjust: see `generate`. Scores use the
            adjusted logits, `log_probs` the logits of the step.
        num_beams: K, an integer.
        length_penalty: exponent of the length in the score, a number or scalar tensor of at least 0. 0 scores by the
            sum of log-probabilities, which prefers short sequences; 1 by their mean. Default: 1.
        state: see `generate`; the state of B rows after the prompts. The first axis of each tensor is the row.

    Returns:
        `Beams`, best first, with the scores defined above. If fewer than K sequences exist, the scores of unused beams
        are -1e30.

    Example:
        >>> def falling(inputs, index, state):  # id 0 is always the most likely
        ...     return ops.zeros((ops.shape(inputs)[0], 4)) - ops.arange(4.0), state
        >>> found = beam_search(falling, [[3, 0, 0, 0]], [1], max_length=3, num_beams=2)
        >>> np.array(found.inputs[0, 0, 1:])
        array([3, 0, 0, 0], dtype=int32)
    """
    start = begin(prompt_ids, prompt_lengths, max_length, start_id)
    batch_size = ops.shape(start.lengths)[0]
    first = ops.arange(num_beams) == 0
    scores = ops.broadcast_to(ops.where(first, 0.0, UNLIKELY), (batch_size, num_beams))
    inputs, log_probs, lengths = (_repeated(x, num_beams) for x in (start.inputs, start.log_probs, start.lengths))
    live = Beams(inputs, log_probs, scores, lengths)
    # A prompt of maximal length is its own result.
    ended = live._replace(scores=ops.where(start.finished[:, None], scores, ops.full_like(scores, UNLIKELY)))
    state = keras.tree.map_structure(lambda x: ops.repeat(ops.convert_to_tensor(x), num_beams, axis=0), state)

    def normalized(scores, lengths):
        added = ops.cast(ops.maximum(lengths - start.lengths[:, None], 1), "float32")
        return scores / added**length_penalty

    def condition(finished, live, ended, state):
        return ops.logical_not(ops.all(finished))

    def search(finished, live, ended, state):
        log_probs, adjusted, state = _next(step, adjust, live, state)
        stopped = _ended_by(stop_token_ids, live, log_probs, adjusted)
        parents, live = _best(num_beams, live, log_probs, _without(stop_token_ids, adjusted))
        at_limit = live.lengths >= start.limits[:, None]
        full = live._replace(scores=ops.where(at_limit, live.scores, UNLIKELY))
        new = full if stopped is None else stopped.concatenate(full)
        new = new._replace(scores=ops.where(new.scores > UNLIKELY / 2, normalized(new.scores, new.lengths), UNLIKELY))
        pool = ended.concatenate(new)
        found = pool.take(ops.cast(ops.top_k(pool.scores, num_beams)[1], "int32"))
        ended = Beams(*(_where(finished, old, new) for old, new in zip(ended, found, strict=True)))
        bound = normalized(live.scores, start.limits[:, None])
        finished = finished | at_limit[:, 0] | (ops.min(ended.scores, axis=1) >= ops.max(bound, axis=1))
        rows = ops.reshape(ops.arange(batch_size, dtype="int32")[:, None] * num_beams + parents, (-1,))
        return finished, live, ended, keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), state)

    return ops.while_loop(condition, search, (start.finished, live, ended, state))[2]


def _next(step, adjust, live, state):
    """Return log-probabilities of the next token, float32 (B, K, V), of logits and adjusted logits, and the state."""
    batch_size, num_beams, length = ops.shape(live.inputs)
    read = ops.reshape(live.inputs, (batch_size * num_beams, length))[:, :-1]
    index = ops.minimum(ops.reshape(live.lengths, (-1,)), length - 2)
    logits, state = step(read, index, state)
    adjusted = logits if adjust is None else adjust(logits, read, index)

    def as_beams(x):
        x = ops.cast(x, "float32")
        x = x - ops.logsumexp(x, axis=-1, keepdims=True)
        return ops.reshape(x, (batch_size, num_beams, x.shape[-1]))

    return as_beams(logits), as_beams(adjusted), state


def _best(num_beams, live, log_probs, adjusted):
    """Return the parent beams, int32 (B, K), and the best continuations."""
    vocabulary_size = adjusted.shape[-1]
    totals = ops.maximum(live.scores[..., None] + adjusted, UNLIKELY)
    totals = ops.reshape(totals, (ops.shape(totals)[0], -1))
    scores, index = ops.top_k(totals, num_beams)
    index = ops.cast(index, "int32")
    parents, tokens = index // vocabulary_size, index % vocabulary_size
    token_log_probs = ops.take_along_axis(ops.reshape(log_probs, ops.shape(totals)), index, axis=1)
    return parents, live.take(parents).append(tokens, token_log_probs)._replace(scores=scores)


def _ended_by(stop_token_ids, live, log_probs, adjusted):
    """Return each beam extended by each stop id, or None without stop ids."""
    stop_token_ids = ops.convert_to_tensor(stop_token_ids, "int32")
    if stop_token_ids.shape[0] == 0:
        return None
    batch_size, num_beams = ops.shape(live.scores)
    # Ignore repeated stop ids and stop ids outside of the vocabulary.
    repeated = ops.any(ops.tril(stop_token_ids[:, None] == stop_token_ids[None, :], k=-1), axis=1)
    valid = (stop_token_ids >= 0) & (stop_token_ids < adjusted.shape[-1]) & ops.logical_not(repeated)
    ids = ops.where(valid, stop_token_ids, 0)
    beams = ops.repeat(ops.arange(num_beams, dtype="int32"), stop_token_ids.shape[0])
    beams = ops.broadcast_to(beams[None], (batch_size, ops.shape(beams)[0]))
    parents = live.take(beams)
    tokens = ops.broadcast_to(ops.tile(ids, [num_beams])[None], ops.shape(beams))
    token_log_probs, gains = (ops.reshape(ops.take(x, ids, axis=2), ops.shape(beams)) for x in (log_probs, adjusted))
    scores = ops.maximum(parents.scores + gains, UNLIKELY)
    scores = ops.where(ops.tile(valid, [num_beams])[None], scores, UNLIKELY)
    return parents.append(tokens, token_log_probs)._replace(scores=scores)


def _without(stop_token_ids, log_probs):
    ids = ops.arange(log_probs.shape[-1], dtype="int32")
    return ops.where(is_stop(ids, stop_token_ids), UNLIKELY, log_probs)


def _repeated(x, num_beams):
    return ops.repeat(x[:, None], num_beams, axis=1)


def _where(finished, old, new):
    """Return `old` for finished rows and `new` for all others, (B, ...)."""
    return ops.where(ops.reshape(finished, (-1, *[1] * (len(new.shape) - 1))), old, new)
