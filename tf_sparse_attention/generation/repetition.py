"""Penalties of repetition: functions (logits, inputs, index) -> logits for `generate`."""

from keras import ops

from tf_sparse_attention.ops.attend import lowest
from tf_sparse_attention.ops.shapes import in_range
from tf_sparse_attention.types import Tensor


def penalize_repetition(
    logits: Tensor, inputs: Tensor, index: Tensor, penalty: float | Tensor, window: int | None = 64
) -> Tensor:
    """Make ids of the last tokens less likely (Keskar et al. 2019, section 4.1).

    The logit of an id that is among the last `window` tokens is divided by the penalty where it is positive and
    multiplied by it where it is negative, once, however often the id occurs.

    Args:
        logits: float (B, V).
        inputs: int32 (B, L), the start id, tokens so far, then anything.
        index: int32 (B,), the last token of each row in `inputs`, which is also the number of its tokens.
        penalty: 1 changes nothing, above 1 repeats less. A number or a scalar tensor.
        window: how many of the last tokens are looked at, an integer; memory grows with it. None: the whole buffer.
            Default 64.

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
    # Position 0 is the start id, which is no token.
    return ops.where(_among(recent, positions > 0, logits), changed, logits)


def block_ngrams(logits: Tensor, inputs: Tensor, index: Tensor, size: int) -> Tensor:
    """Forbids repeated n-grams: ids that would complete one of the row get the lowest float32.

    Args:
        logits, inputs, index: as for `penalize_repetition`.
        size: n, an integer of at least 1; with 1 no token is repeated.

    Returns:
        Float32 (B, V). A row in which all ids would be forbidden is returned unchanged.
    """
    inputs, index = ops.cast(inputs, "int32"), ops.cast(index, "int32")
    positions = ops.arange(ops.shape(inputs)[1], dtype="int32")[None, :]
    # Position p ends an n-gram that begins with the last n - 1 tokens if the tokens before it equal them.
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
    """Return which ids of the vocabulary are among the chosen ones of ids (B, W): bool (B, V)."""
    batch, size = ops.shape(logits)
    rows = ops.arange(batch, dtype="int32")[:, None] * (size + 1)
    index = ops.reshape(rows + ops.where(chosen, ids, size), (-1, 1))  # ids not chosen are written after the vocabulary
    found = ops.scatter_update(
        ops.zeros((batch * (size + 1),), "int32"), index, ops.ones((ops.shape(index)[0],), "int32")
    )
    return ops.reshape(found, (batch, size + 1))[:, :size] > 0
