"""Speculative decoding: a cheap draft model proposes tokens, and the target model verifies them in one pass."""

from typing import Any, NamedTuple, Protocol

from keras import ops

from tf_sparse_attention.generation.loop import Progress, is_stop, log_prob_of
from tf_sparse_attention.generation.strategies import Sampling
from tf_sparse_attention.ops.random_bits import fold_in, uniform
from tf_sparse_attention.types import Tensor

# Random streams per position: draft tokens, acceptance, replacements of rejected drafts.
DRAFT, ACCEPT, REPLACE = 1, 2, 3


class CachedModel(Protocol):
    """Interface of the models of `speculate`."""

    def extend(self, inputs: Tensor, cache: Any, mask: Tensor) -> tuple[Tensor, Any]:
        """Return the logits (B, q, V) of the next tokens, and the cache with them."""

    def rewind(self, cache: Any, lengths: Tensor) -> Any:
        """Return the cache with the first `lengths` (B,) tokens of each row."""


class SpeculativeState(NamedTuple):
    """State of speculative decoding in a `Progress`.

    Attributes:
        target: cache of the target model, with all inputs except the last.
        draft: cache of the draft model, with all inputs except the last one or two.
        num_draft: int32 (B,), number of inputs in the cache of the draft model.
        num_passes: int32 (B,), passes of the target model that added tokens to the row.
    """

    target: Any
    draft: Any
    num_draft: Tensor
    num_passes: Tensor


def speculate(
    progress: Progress,
    target: CachedModel,
    draft: CachedModel,
    sampling: Sampling,
    values: dict[str, Tensor],
    num_draft_tokens: int,
    keys: Tensor,
    stop_token_ids: Tensor,
    num_tokens: int | Tensor | None = None,
) -> Progress:
    """Generate tokens by speculative decoding, see `tf_sparse_attention.generation.Speculative`.

    Args:
        progress: a `Progress` with a `SpeculativeState`.
        target, draft: models with the same vocabulary. Logits of ids that must not occur are the minimum.
        sampling: a `Sampling` without repetition settings.
        values: `sampling.values`, or scalar tensors with the same keys.
        num_draft_tokens: k.
        keys: uint32 (B, 2), one key per row.
        stop_token_ids: int (S,), ids that end a row.
        num_tokens: minimum number of new tokens per row. The loop ends when each row has this many or is finished.
            None: until all rows are finished.

    Returns:
        The updated `Progress`. Rows may have up to k more new tokens than `num_tokens`.
    """
    begin, size = progress.lengths, ops.shape(progress.inputs)[1]

    def condition(progress):
        is_active = ops.logical_not(progress.finished)
        if num_tokens is not None:
            is_active = ops.logical_and(is_active, progress.lengths - begin < num_tokens)
        return ops.any(is_active)

    def add(progress):
        inputs, log_probs, lengths, finished, limits, state = progress
        # Number of tokens that the row may still get; drafts beyond it are masked.
        room = ops.where(finished, 0, ops.minimum(limits - lengths, num_draft_tokens + 1))
        drafts, draft_logits, draft_cache = _draft(
            draft, state, inputs, lengths, room, sampling, values, keys, num_draft_tokens
        )
        last = ops.take_along_axis(inputs, lengths[:, None], axis=1)
        verified = ops.concatenate([last, drafts], axis=1)  # (B, k + 1)
        logits, target_cache = target.extend(verified, state.target, _first(num_draft_tokens + 1, room))
        tokens, num_accepted = _verify(logits, drafts, draft_logits, lengths, sampling, values, keys)
        # New tokens per row: up to the first stop id, and at most `room`.
        count = ops.minimum(num_accepted + 1, room)
        stops = is_stop(tokens, stop_token_ids)
        before_stop = ops.cumsum(ops.cast(stops, "int32"), axis=1) - ops.cast(stops, "int32") == 0
        is_new = ops.logical_and(_first(num_draft_tokens + 1, count), before_stop)
        count = ops.sum(ops.cast(is_new, "int32"), axis=1)
        has_stop = ops.any(ops.logical_and(stops, is_new), axis=1)
        number = ops.arange(size, dtype="int32")[None] - (lengths[:, None] + 1)  # of the new token at each position
        at = ops.clip(number, 0, num_draft_tokens)
        writes = ops.logical_and(number >= 0, number < count[:, None])
        new_log_probs = ops.reshape(log_prob_of(_as_rows(logits), ops.reshape(tokens, (-1,))), ops.shape(tokens))
        inputs = ops.where(writes, ops.take_along_axis(tokens, at, axis=1), inputs)
        log_probs = ops.where(writes[:, 1:], ops.take_along_axis(new_log_probs, at[:, 1:], axis=1), log_probs)
        after = lengths + count
        # The target cache has the last input and all drafts. The draft cache lacks the last draft.
        num_draft = ops.minimum(lengths + ops.minimum(room, num_draft_tokens), after)
        num_draft = ops.where(room > 0, num_draft, state.num_draft)
        state = SpeculativeState(
            target.rewind(target_cache, after),
            draft.rewind(draft_cache, num_draft),
            num_draft,
            state.num_passes + ops.cast(count > 0, "int32"),
        )
        finished = finished | (after >= limits) | has_stop
        return (Progress(inputs, log_probs, after, finished, limits, state),)

    return ops.while_loop(condition, add, (progress,))[0]


def _first(size: int, counts: Tensor) -> Tensor:
    """Return a mask of the first `counts` (B,) of `size` tokens, bool (B, size)."""
    return ops.arange(size, dtype="int32")[None] < counts[:, None]


def _draft(draft, state, inputs, lengths, room, sampling, values, keys, num_draft_tokens):
    """Return drafts int32 (B, k), their logits (B, k, V), and the draft cache with all drafts except the last."""
    # The draft cache lacks the last input, and after k accepted drafts also the input before it.
    pending = lengths + 1 - state.num_draft
    at = ops.minimum(state.num_draft[:, None] + ops.arange(2, dtype="int32"), lengths[:, None])
    given = ops.take_along_axis(inputs, at, axis=1)
    mask = _first(2, ops.where(room > 0, pending, 0))
    logits, cache = draft.extend(given, state.draft, mask)
    last = ops.take_along_axis(logits, ops.clip(pending - 1, 0, 1)[:, None, None], axis=1)[:, 0]
    drafts = ops.zeros((ops.shape(last)[0], num_draft_tokens), "int32")
    all_logits = ops.zeros((*ops.shape(drafts), last.shape[-1]), last.dtype)
    sample = sampling.sampler(values)

    def add(number, last, drafts, all_logits):
        key = fold_in(fold_in(keys, lengths + number), ops.full_like(lengths, DRAFT))
        token = ops.cast(sample(last, key), "int32")[:, None]
        is_new = ops.arange(num_draft_tokens) == number
        all_logits = ops.where(is_new[:, None], last[:, None], all_logits)
        return token, ops.where(is_new, token, drafts), all_logits

    def add_and_read(number, last, drafts, all_logits, cache):
        token, drafts, all_logits = add(number, last, drafts, all_logits)
        # Draft number n + 1 continues the row only if it may get more than n + 1 tokens.
        logits, cache = draft.extend(token, cache, (room > number + 1)[:, None])
        return number + 1, logits[:, 0], drafts, all_logits, cache

    number, end = ops.zeros((), "int32"), num_draft_tokens - 1
    if end:
        number, last, drafts, all_logits, cache = ops.while_loop(
            lambda number, *_: number < end, add_and_read, (number, last, drafts, all_logits, cache)
        )
    _, drafts, all_logits = add(number, last, drafts, all_logits)
    return drafts, all_logits, cache


def _as_rows(x):
    """Reshape (B, n, V) to (B * n, V)."""
    return ops.reshape(x, (-1, x.shape[-1]))


def _verify(logits, drafts, draft_logits, lengths, sampling, values, keys):
    """Return the next tokens, int32 (B, k + 1), and the number of accepted drafts, int32 (B,).

    Only the accepted drafts and one token after them are valid.
    """
    num_drafts = drafts.shape[1]
    if sampling.temperature == 0:
        best = ops.cast(ops.argmax(logits, axis=-1), "int32")  # (B, k + 1)
        accepted = ops.cast(best[:, :num_drafts] == drafts, "int32")
        return best, ops.sum(ops.cumprod(accepted, axis=1), axis=1)
    (batch, count), size = ops.shape(logits)[:2], logits.shape[-1]
    probabilities, proposed = (
        ops.reshape(sampling.probabilities(_as_rows(x), values), ops.shape(x)) for x in (logits, draft_logits)
    )
    # One key per new token
    positions = ops.reshape(lengths[:, None] + ops.arange(count, dtype="int32"), (-1,))
    keys = fold_in(ops.repeat(keys, count, axis=0), positions)

    def draw(use, number):
        drawn = uniform(fold_in(keys, ops.full_like(positions, use)), number)
        return ops.reshape(drawn, (batch, count, number))

    at_drafts = probabilities[:, :num_drafts]
    p, q = (ops.take_along_axis(x, drafts[..., None], axis=2)[..., 0] for x in (at_drafts, proposed))
    accepted = draw(ACCEPT, 1)[:, :num_drafts, 0] * q < p
    remaining = ops.maximum(at_drafts - proposed, 0)
    # False if both distributions are equal up to rounding
    has_rest = ops.any(remaining > 0, axis=-1, keepdims=True)
    remaining = ops.concatenate(
        [ops.where(has_rest, remaining, at_drafts), probabilities[:, num_drafts:]], axis=1
    )  # after the last draft, all of the distribution remains
    noise = -ops.log(-ops.log(draw(REPLACE, size)))
    scores = ops.where(remaining > 0, ops.log(ops.maximum(remaining, 1e-38)) + noise, -1e38)
    replacements = ops.cast(ops.top_k(scores, 1)[1][..., 0], "int32")
    num_accepted = ops.sum(ops.cumprod(ops.cast(accepted, "int32"), axis=1), axis=1)
    padded = ops.concatenate([drafts, drafts[:, :1]], axis=1)
    return ops.where(_first(count, num_accepted), padded, replacements), num_accepted
