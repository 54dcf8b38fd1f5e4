"""Loss of connectionist temporal classification (CTC)."""

from keras import ops

from tf_sparse_attention.ops.shapes import max_over
from tf_sparse_attention.types import Tensor

IMPOSSIBLE = -1e30  # log-probability of unreachable states, finite so that sums and differences are never NaN
NEVER = -1e5  # log-probability of a label in a padded frame; paths exclude labels below half of it
BLANK = 0


def ctc_loss(labels: Tensor, log_probs: Tensor) -> Tensor:
    """Compute the CTC loss, -log p of the labels of each row summed over all alignments (Graves et al. 2006).

    An alignment gives each frame a label or the blank, id 0. Repeats are collapsed and blanks dropped, so consecutive
    equal labels need a blank between them. Cost: two float32 passes over the frames, O(T U) per row.

    The gradient with respect to `log_probs` is minus the probability of each id in each frame. It follows from the two
    passes, which are not differentiated.

    Note: equals `keras.ops.ctc_loss`, which forms an array (B, T, U, V) on TensorFlow. For one row with 1,152 frames,
    576 labels and a vocabulary of 59 labels, it takes 5.6 s for loss and gradient on one core, or 2.0 s with XLA. This
    function takes 0.08 s, or 0.014 s with XLA.

    Args:
        labels: int (B, U), 0 for padding on the right.
        log_probs: float (B, T, V), log-probabilities of the blank and the labels 1 to V - 1.

    Returns:
        float32 (B,), in nats. A row without labels and frames has loss 0. If the labels need more frames than the row
        has, see `min_frames`, the loss is infinite and has no gradient. Frames that `force_blanks` marks as padding
        have no effect.
    """
    labels, log_probs = ops.cast(labels, "int32"), ops.cast(log_probs, "float32")
    constant = ops.stop_gradient(log_probs)
    label_lengths = ops.sum(ops.cast(labels != BLANK, "int32"), axis=-1)
    states = _states(labels)  # (B, 2U + 1)
    skips = _can_skip(states)
    emitted = ops.take_along_axis(constant, states[:, None, :], axis=2)  # (B, T, 2U + 1)
    emitted = ops.where(emitted < NEVER / 2, IMPOSSIBLE, emitted)
    emitted = ops.transpose(emitted, (1, 0, 2))  # (T, B, 2U + 1)
    forward = _forward(emitted, skips)
    backward = _backward(emitted, skips, label_lengths)
    joint = forward + backward  # (T, B, 2U + 1)
    total = ops.logsumexp(joint[0], axis=-1)  # (B,)
    possible = total > IMPOSSIBLE / 2
    posteriors = ops.exp(ops.minimum(joint - total[None, :, None], 0.0))
    posteriors = ops.where(possible[None, :, None], posteriors, 0.0)
    state_ids = ops.one_hot(states, log_probs.shape[-1], dtype="float32")
    occupied = ops.stop_gradient(ops.einsum("TBS,BSV->BTV", posteriors, state_ids))
    value = ops.stop_gradient(ops.where(possible, -total, float("inf")))
    # Only the gradient is used; it equals the gradient of the loss. At probability 0, log_probs can be infinite.
    linear = -ops.sum(ops.where(occupied > 0, occupied * log_probs, 0), axis=(1, 2))
    return value + (linear - ops.stop_gradient(linear))


def min_frames(labels: Tensor) -> Tensor:
    """Return the number of frames that labels (B, U) need, int32 (B,).

    Each label needs a frame, and so does a blank between equal labels. Labels of 0 are padding on the right.
    """
    labels = ops.cast(labels, "int32")
    exists = labels != BLANK
    repeated = ops.logical_and(labels[:, 1:] == labels[:, :-1], exists[:, 1:])
    return ops.sum(ops.cast(exists, "int32"), axis=-1) + ops.sum(ops.cast(repeated, "int32"), axis=-1)


def count_label_frames(log_probs: Tensor) -> Tensor:
    """Count the frames of `log_probs` (B, T, V) that `force_blanks` did not mark as padding, int32 (B,)."""
    return ops.sum(ops.cast(max_over(log_probs[..., 1:], axis=-1) >= NEVER / 2, "int32"), axis=-1)


def force_blanks(log_probs: Tensor, exists: Tensor) -> Tensor:
    """Set the probability of the blank to 1 where `exists` (B, T) is False, so padding does not change the loss."""
    blank = ops.where(ops.arange(ops.shape(log_probs)[-1]) == BLANK, 0.0, NEVER)
    return ops.where(exists[..., None], log_probs, ops.cast(blank, log_probs.dtype))


def _states(labels):
    """Return the ids of alignment states, (B, 2U + 1): blanks before, between and after the labels."""
    doubled = ops.stack([ops.zeros_like(labels), labels], axis=-1)  # (B, U, 2)
    batch, length = ops.shape(labels)[0], ops.shape(labels)[1]
    return ops.pad(ops.reshape(doubled, (batch, 2 * length)), [[0, 0], [0, 1]])


def _can_skip(states):
    """Return whether a path can skip the blank before a state, bool (B, 2U + 1): between different labels."""
    before = ops.pad(states, [[0, 0], [2, 0]])[:, :-2]
    return ops.logical_and(states != BLANK, states != before)


def _forward(emitted, skips):
    """Return log p of the frames 0 .. t and state s at frame t, (T, B, 2U + 1)."""
    start = ops.where(ops.arange(ops.shape(skips)[1]) == 0, 0.0, IMPOSSIBLE)

    def step(before, frame):
        one = ops.pad(before, [[0, 0], [1, 0]], constant_values=IMPOSSIBLE)[:, :-1]
        two = ops.pad(before, [[0, 0], [2, 0]], constant_values=IMPOSSIBLE)[:, :-2]
        current = _log_sum(before, one, ops.where(skips, two, IMPOSSIBLE)) + frame
        return current, current

    return ops.scan(step, ops.zeros_like(emitted[0]) + start, emitted)[1]


def _backward(emitted, skips, label_lengths):
    """Return log p of the frames after t given state s at frame t, (T, B, 2U + 1)."""
    number = ops.arange(ops.shape(skips)[1])[None, :]
    is_last = ops.logical_or(number == 2 * label_lengths[:, None], number == 2 * label_lengths[:, None] - 1)

    def step(after, frame):
        here = after + frame
        one = ops.pad(here, [[0, 0], [0, 1]], constant_values=IMPOSSIBLE)[:, 1:]
        two = ops.where(skips, here, IMPOSSIBLE)
        two = ops.pad(two, [[0, 0], [0, 2]], constant_values=IMPOSSIBLE)[:, 2:]
        return _log_sum(here, one, two), after

    return ops.scan(step, ops.where(is_last, 0.0, IMPOSSIBLE), emitted, reverse=True)[1]


def _log_sum(one, two, three):
    largest = ops.maximum(ops.maximum(one, two), three)
    return largest + ops.log(ops.exp(one - largest) + ops.exp(two - largest) + ops.exp(three - largest))
