"""The loss of a speech recognizer."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.layers.parts.integers import values_of
from tf_sparse_attention.ops.ctc import ctc_loss, needed_frames
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class CTCLoss(keras.losses.Loss):
    """The mean of -log p over labels, in nats a label; p of a row is summed over all alignments with frames.

    Called with labels, int (B, U), 0 for padding on the right, and what a `SpeechRecognizer` returns, log-probabilities
    (B, T, V + 1) with the blank first. Rows of the batch that are empty count nothing. In float32 whatever the dtype
    policy; see `tf_sparse_attention.ops.ctc.ctc_loss`.

    Note: `keras.losses.CTC` is the sum for each row. The mean over labels is the same for rows of all lengths.

    Args:
        name: default "ctc".
        reduction: as in Keras, default "sum_over_batch_size".
        dtype: of the loss, default float32.

    Raises:
        ValueError: in a call outside of a program, for labels that need more frames than there are. In a program their
            loss is infinite and has no gradient.

    Example:
        >>> log_probs = ops.log_softmax(keras.random.normal((2, 10, 5)))
        >>> loss = CTCLoss()(np.array([[1, 2, 2], [3, 0, 0]]), log_probs)
        >>> bool(loss > 0)
        True
    """

    def __init__(self, name: str = "ctc", reduction: str = "sum_over_batch_size", dtype: Any = None) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.cast(y_true, "int32")
        _check_lengths(labels, y_pred.shape[1])
        share = ops.mean(ops.sum(ops.cast(labels != 0, "float32"), axis=-1))  # labels of a row
        return ctc_loss(labels, y_pred) / ops.maximum(share, 1)


def _check_lengths(labels, num_frames):
    """Raises a `ValueError` for labels that no frames can be aligned with, where they can be seen."""
    known = values_of(needed_frames(labels))
    if known is not None and num_frames is not None and known.size and known.max() > num_frames:
        raise ValueError(
            "`y_true` must be labels that the frames can be aligned with: one each, and a blank between equal "
            f"ones in a row. Received: labels that need {known.max()} frames, of which there are {num_frames}."
        )
