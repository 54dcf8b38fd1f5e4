"""Repetition penalties: functions (logits, inputs, index) -> logits for `adjust` of `generate`."""

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.shapes import in_range
from tf_sparse_attention.types import Tensor


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
