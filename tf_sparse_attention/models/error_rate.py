"""Error rates of speech recognition: edits divided by reference labels."""

from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.generation.ctc import ctc_greedy
from tf_sparse_attention.models.label_checks import check_labels
from tf_sparse_attention.ops.edit_distance import count_edits, hash_words
from tf_sparse_attention.types import Config, Tensor


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class ErrorRate(keras.metrics.Metric):
    """Insertions, deletions and substitutions of labels, divided by the number of reference labels.

    The edits of all rows are summed and divided by the labels of all rows, as in published results. The rate can
    exceed 1, and is 0 without labels.

    Called with labels, int (B, U), 0 for padding on the right, and with hypotheses of the same form, (B, W), or the
    output of a `SpeechRecognizer`, log-probabilities (B, T, V + 1), which `ctc_greedy` decodes.

    Args:
        name: default "error_rate".
        dtype: dtype of the result, default float32.

    Example:
        >>> metric = PhoneErrorRate()
        >>> metric.update_state(np.array([[1, 2, 3], [4, 5, 0]]), np.array([[1, 3, 0], [4, 5, 0]]))
        >>> float(metric.result())  # 1 of 5 labels is missing
        0.20000000298023224
    """

    def __init__(self, name: str = "error_rate", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype or "float32")
        # Integers: float32 cannot count beyond 2^24.
        self.edits = self.add_variable((), "zeros", dtype="int32", name="edits")
        self.labels = self.add_variable((), "zeros", dtype="int32", name="labels")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch. Rows with a `sample_weight` (B,) of 0 are left out.

        Raises:
            ValueError: In an eager call, if labels are negative or have padding before labels.
        """
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        y_pred = ctc_greedy(y_pred) if len(y_pred.shape) == 3 else ops.cast(y_pred, "int32")
        for name, labels in {"y_true": y_true, "y_pred": y_pred}.items():
            check_labels(name, labels)
        edits, count = count_edits(self.tokens_of(y_true), self.tokens_of(y_pred))
        if sample_weight is not None:
            has_weight = ops.cast(ops.reshape(ops.convert_to_tensor(sample_weight), (-1,)) != 0, "int32")
            edits, count = edits * has_weight, count * has_weight
        self.edits.assign_add(ops.cast(ops.sum(edits), "int32"))
        self.labels.assign_add(ops.cast(ops.sum(count), "int32"))

    def tokens_of(self, labels: Tensor) -> Tensor:
        """Return the tokens to compare: the labels."""
        return labels

    def result(self) -> Tensor:
        return ops.cast(self.edits, self.dtype) / ops.cast(ops.maximum(self.labels, 1), self.dtype)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class PhoneErrorRate(ErrorRate):
    """Error rate of phones; see `ErrorRate`.

    Args:
        name: default "phone_error_rate".
        dtype: as in `ErrorRate`.
    """

    def __init__(self, name: str = "phone_error_rate", dtype: Any = None) -> None:
        super().__init__(name, dtype)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class WordErrorRate(ErrorRate):
    """Error rate of words, for labels that are characters; see `ErrorRate`.

    Words are compared by length and by a hash of 62 bits, see `tf_sparse_attention.ops.edit_distance.hash_words`.

    Args:
        separator: id of the label between words, usually the space.
        name: default "word_error_rate".
        dtype: as in `ErrorRate`.

    Raises:
        ValueError: If `separator` is not a positive integer.

    Example:
        >>> metric = WordErrorRate(separator=1)
        >>> metric.update_state(np.array([[2, 3, 1, 4]]), np.array([[2, 3, 1, 5]]))  # "ab c" recognized as "ab d"
        >>> float(metric.result())
        0.5
    """

    def __init__(self, separator: int, name: str = "word_error_rate", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        checks.check_count("separator", separator)
        self.separator = separator

    def tokens_of(self, labels: Tensor) -> Tensor:
        """Return the tokens to compare: the words."""
        return hash_words(labels, self.separator)

    def get_config(self) -> Config:
        return {**super().get_config(), "separator": self.separator}
