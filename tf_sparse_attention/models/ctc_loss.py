"""The loss of a speech recognizer."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.layers.data_parallel import mean_factor
from tf_sparse_attention.models.label_checks import check_labels
from tf_sparse_attention.ops.ctc import count_label_frames, ctc_loss, min_frames
from tf_sparse_attention.types import Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class CTCLoss(keras.losses.Loss):
    """The mean of -log p over labels, in nats per label; p of a row is summed over all alignments with frames.

    Called with labels, int (B, U), 0 for padding on the right, and what a `SpeechRecognizer` returns, log-probabilities
    (B, T, V + 1) with the blank first. Rows of the batch that are empty count nothing, nor do those with a
    `sample_weight` of 0; a batch without labels has the nats of its frames. In a step of `tsa.models.Model` on several
    replicas of TensorFlow the mean is over the labels of all of them. In float32 whatever the dtype policy; see
    `tf_sparse_attention.ops.ctc.ctc_loss`.

    Note: `keras.losses.CTC` is the sum for each row. The mean over labels is the same for rows of all lengths.

    Args:
        name: default "ctc".
        reduction: as in Keras, default "sum_over_batch_size".
        dtype: of the loss, default float32.

    Raises:
        ValueError: in a call outside of a program, for labels that need more frames than a row has without its padding,
            that are no ids from 1 to V, or that have padding before others. In a program the loss of a row that needs
            more frames is infinite, and so is that of its batch; the row has no gradient, that of the others stays as
            it is.

    Example:
        >>> log_probs = ops.log_softmax(keras.random.normal((2, 10, 5)))
        >>> loss = CTCLoss()(np.array([[1, 2, 2], [3, 0, 0]]), log_probs)
        >>> bool(loss > 0)
        True
    """

    def __init__(self, name: str = "ctc", reduction: str = "sum_over_batch_size", dtype: Any = None) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return super().__call__(_counted(y_true, sample_weight), y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.cast(y_true, "int32")
        _check_labels(labels, y_pred)
        # Keras divides the sum by the rows.
        rows = ops.cast(ops.shape(labels)[0], "float32")
        return ctc_loss(labels, y_pred) * (mean_factor() * rows / ops.maximum(self.count_targets(labels), 1))

    def count_targets(self, y_true: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Returns how many labels the loss is the mean of, float32 (); the arguments are those of a call."""
        return ops.sum(ops.cast(_counted(y_true, sample_weight) != 0, "float32"))


def _counted(labels, sample_weight):
    """Returns labels without those of rows of weight 0: an infinite loss times 0 would be no number."""
    if sample_weight is None:
        return labels
    counts = ops.reshape(ops.convert_to_tensor(sample_weight), (-1, 1)) != 0
    return ops.where(counts, labels, ops.zeros_like(labels))


def _check_labels(labels, log_probs):
    """Raises a `ValueError` for labels that are none, or that no frames can be aligned with, where they can be seen."""
    check_labels("y_true", labels, log_probs.shape[-1])
    needed, found = (concrete_values(count) for count in (min_frames(labels), count_label_frames(log_probs)))
    if needed is None or found is None or not (needed > found).any():
        return
    row = int((needed > found).argmax())
    raise ValueError(
        "`y_true` must be labels that the frames can be aligned with: one each, and a blank between equal ones in a "
        f"row. Received: labels that need {needed[row]} frames, of which there are {found[row]} in row {row}."
    )
