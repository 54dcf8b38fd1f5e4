"""Loss of speech recognizers."""

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
    """Mean CTC loss per label, in nats: -log p of the labels of each row, summed over all alignments with frames.

    Called with labels, int (B, U), 0 for padding on the right, and the output of a `SpeechRecognizer`,
    log-probabilities (B, T, V + 1) with the blank first. Empty rows and rows with a `sample_weight` of 0 are left out.
    The loss of a batch without labels is the sum of the nats of its frames. In a step of `tsa.models.Model` on several
    TensorFlow replicas, the mean is over the labels of all replicas. Always computed in float32; see
    `tf_sparse_attention.ops.ctc.ctc_loss`.

    Note: differs from `keras.losses.CTC`, which is the sum per row. The mean per label does not depend on row lengths.

    Args:
        name: default "ctc".
        reduction: as in Keras, default "sum_over_batch_size".
        dtype: dtype of the loss, default float32.

    Raises:
        ValueError: In an eager call, if labels need more frames than a row has without padding, are not ids from 1 to
            V, or have padding before labels. In a compiled call, the loss of a row with too few frames is infinite, and
            so is the loss of the batch. This row has no gradient; the gradients of other rows do not change.

    Example:
        >>> log_probs = ops.log_softmax(keras.random.normal((2, 10, 5)))
        >>> loss = CTCLoss()(np.array([[1, 2, 2], [3, 0, 0]]), log_probs)
        >>> bool(loss > 0)
        True
    """

    def __init__(self, name: str = "ctc", reduction: str = "sum_over_batch_size", dtype: Any = None) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return super().__call__(_mask_rows(y_true, sample_weight), y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.cast(y_true, "int32")
        _check_labels(labels, y_pred)
        # Keras divides the sum by the number of rows.
        rows = ops.cast(ops.shape(labels)[0], "float32")
        return ctc_loss(labels, y_pred) * (mean_factor() * rows / ops.maximum(self.count_targets(labels), 1))

    def count_targets(self, y_true: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Count the labels of a batch, float32 (); arguments as in a call."""
        return ops.sum(ops.cast(_mask_rows(y_true, sample_weight) != 0, "float32"))


def _mask_rows(labels, sample_weight):
    """Remove the labels of rows with weight 0: weight 0 times an infinite loss is NaN."""
    if sample_weight is None:
        return labels
    has_weight = ops.reshape(ops.convert_to_tensor(sample_weight), (-1, 1)) != 0
    return ops.where(has_weight, labels, ops.zeros_like(labels))


def _check_labels(labels, log_probs):
    """Raise a `ValueError` in eager calls for invalid labels, or for more labels than frames."""
    check_labels("y_true", labels, log_probs.shape[-1])
    needed, available = (concrete_values(count) for count in (min_frames(labels), count_label_frames(log_probs)))
    if needed is None or available is None or not (needed > available).any():
        return
    row = int((needed > available).argmax())
    raise ValueError(
        "`y_true` must have labels for which there are enough frames: one per label, and a blank between equal labels. "
        f"Received: labels that need {needed[row]} frames, and {available[row]} frames in row {row}."
    )
