"""Losses and metrics of language models and of speech recognition. All ignore padding, id 0."""

import math
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.checks import concrete_values
from tf_sparse_attention.generation.ctc import ctc_greedy
from tf_sparse_attention.layers.data_parallel import mean_factor
from tf_sparse_attention.ops.ctc import count_label_frames, ctc_loss, min_frames
from tf_sparse_attention.ops.edit_distance import count_edits, hash_words
from tf_sparse_attention.types import Config, Tensor


def nats_of(targets: Tensor, predictions: Tensor) -> Tensor:
    """Compute -log p of targets (B, T) from logits (B, T, V). Nats (B, T) are returned unchanged."""
    if len(predictions.shape) == 2:
        return predictions
    return keras.losses.sparse_categorical_crossentropy(targets, predictions, from_logits=True)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class LanguageModelLoss(keras.losses.Loss):
    """Mean -log p over the targets except padding (id 0), in nats per token.

    Called with ids (B, T) and logits (B, T, V), or nats (B, T) of a model with targets as inputs. In a step of
    `tsa.models.Model` on several TensorFlow replicas, the mean is over the targets of all replicas.

    Args:
        name: default "cross_entropy".
        reduction: as in Keras, default "sum_over_batch_size".
        dtype: dtype of the loss, default float32.
        label_smoothing: s in [0, 1). The loss is (1 - s) (-log p of the target) + s (mean of -log p over all ids), as
            in `keras.losses.CategoricalCrossentropy`. Must be 0 for a model that returns nats. Default 0.

    Raises:
        ValueError: if `label_smoothing` is invalid, or a call with label smoothing gets nats.
    """

    def __init__(
        self,
        name: str = "cross_entropy",
        reduction: str = "sum_over_batch_size",
        dtype: Any = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        checks.check_rate("label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing

    def get_config(self) -> Config:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        # A copy has no Keras mask. With a mask, Keras would divide by the number of targets again.
        return super().__call__(y_true, ops.copy(y_pred), sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        is_target = ops.not_equal(y_true, 0)
        nats = nats_of(y_true, y_pred)
        if self.label_smoothing:
            nats = (1 - self.label_smoothing) * nats + self.label_smoothing * _mean_nats(y_pred)
        nats = ops.where(is_target, nats, 0)
        # Keras divides the sum by the number of all targets, padding included.
        share = ops.sum(ops.cast(is_target, nats.dtype)) / ops.cast(ops.size(is_target), nats.dtype)
        return nats * (mean_factor() / ops.where(share > 0, share, 1))

    def count_targets(self, y_true: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Count the targets except padding, float32 (); weights have no effect."""
        return ops.sum(ops.cast(ops.not_equal(y_true, 0), "float32"))


def _mean_nats(logits):
    """Return the mean of -log p over all ids, (B, T), for logits (B, T, V)."""
    if len(logits.shape) == 2:
        raise ValueError("`label_smoothing` must be 0 for a model that returns nats. Received: nats (B, T).")
    return ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)


def language_model_loss(label_smoothing: float = 0.0) -> LanguageModelLoss:
    """Create the loss of language models: mean -log p over the targets except padding (id 0), in nats per token.

    Args:
        label_smoothing: s in [0, 1). The loss is (1 - s) (-log p of the target) + s (mean of -log p over all ids).
            Must be 0 for a model that returns nats. Default 0.
    """
    return LanguageModelLoss(label_smoothing=label_smoothing)


class TokenMetric(keras.metrics.Metric):
    """Base class of metrics computed from the mean nats per token.

    Args:
        name: name of the metric.
        dtype: dtype of its sums, default float32.
    """

    def __init__(self, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype or "float32")  # bfloat16 sums would stop growing
        self.nats = self.add_variable((), "zeros", name="nats")
        self.tokens = self.add_variable((), "zeros", name="tokens")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        """Add a batch: ids (B, T), logits (B, T, V) or nats (B, T), weights (B, T); targets of id 0 do not count."""
        nats = ops.cast(nats_of(y_true, y_pred), self.dtype)
        weights = ops.cast(ops.not_equal(y_true, 0), self.dtype)
        if sample_weight is not None:
            weights = weights * ops.cast(sample_weight, self.dtype)
        self.nats.assign_add(ops.sum(nats * weights))
        self.tokens.assign_add(ops.sum(weights))

    def nats_per_token(self) -> Tensor:
        """Return the mean nats per token so far; 0 before the first token."""
        return self.nats / ops.maximum(self.tokens, 1)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class Perplexity(TokenMetric):
    """Perplexity, exp(nats per token).

    Args:
        name: default "perplexity".
        dtype: dtype of its sums, default float32.
    """

    def __init__(self, name: str = "perplexity", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def result(self) -> Tensor:
        return ops.exp(self.nats_per_token())


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class PerplexityPerWord(TokenMetric):
    """Perplexity per word, exp(nats per word), as reported for PG-19, comparable across tokenizers.

    Args:
        tokens_per_word: tokens of the split divided by its words.
        name: default "perplexity_per_word".
        dtype: dtype of its sums, default float32.
    """

    def __init__(self, tokens_per_word: float, name: str = "perplexity_per_word", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        checks.check_positive("tokens_per_word", tokens_per_word)
        self.tokens_per_word = float(tokens_per_word)

    def result(self) -> Tensor:
        return ops.exp(self.nats_per_token() * self.tokens_per_word)

    def get_config(self) -> Config:
        return {**super().get_config(), "tokens_per_word": self.tokens_per_word}


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class BitsPerByte(TokenMetric):
    """Bits per byte of text: nats per token / ln 2 * tokens per byte.

    Args:
        tokens_per_byte: tokens of the split divided by its bytes. Default 1: a token is a byte.
        name: default "bits_per_byte".
        dtype: dtype of its sums, default float32.
    """

    def __init__(self, tokens_per_byte: float = 1.0, name: str = "bits_per_byte", dtype: Any = None) -> None:
        super().__init__(name, dtype)
        checks.check_positive("tokens_per_byte", tokens_per_byte)
        self.tokens_per_byte = float(tokens_per_byte)

    def result(self) -> Tensor:
        return self.nats_per_token() * (self.tokens_per_byte / math.log(2))

    def get_config(self) -> Config:
        return {**super().get_config(), "tokens_per_byte": self.tokens_per_byte}


def check_labels(name: str, labels: Tensor, num_ids: int | None = None) -> None:
    """Raise a `ValueError` for invalid labels in eager calls. Compiled calls are not checked.

    Args:
        name: name of the argument in errors.
        labels: int (B, U), ids from 1 on, 0 for padding on the right.
        num_ids: number of ids, including 0. None: no limit.
    """
    values = concrete_values(labels)
    if values is None:
        return
    wrong = values[(values < 0) | (values >= (float("inf") if num_ids is None else num_ids))]
    if wrong.size:
        limit = "on" if num_ids is None else f"to {num_ids - 1}"
        raise ValueError(f"`{name}` must be ids from 1 {limit}, and 0 for padding. Received: {wrong[0]}.")
    if ((values[:, :-1] == 0) & (values[:, 1:] != 0)).any():
        raise ValueError(f"`{name}` must have padding, 0, on the right only. Received: 0 before another label.")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class CTCLoss(keras.losses.Loss):
    """Mean CTC loss per label, in nats. The probability of the labels of a row is summed over all alignments.

    Called with labels, int (B, U), 0 for padding on the right, and the output of a `SpeechRecognizer`,
    log-probabilities (B, T, V + 1) with the blank first. Rows with a `sample_weight` of 0 are left out. A row without
    labels adds -log p of a blank in every frame to the numerator. For a batch without labels, the loss is the
    numerator. In a step of `tsa.models.Model` on several TensorFlow replicas, the mean is over the labels of all
    replicas. Always computed in float32; see `tf_sparse_attention.ops.ctc.ctc_loss`.

    Note: `keras.losses.CTC` averages the losses of rows; `CTCLoss` divides their sum by the number of labels.

    Args:
        name: default "ctc".
        reduction: as in Keras, default "sum_over_batch_size".
        dtype: dtype of the loss, default float32.

    Raises:
        ValueError: in an eager call, if labels need more frames than a row has without padding, are not ids from 1 to
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
        """Count the labels of a batch, float32 (); arguments as in a call, without `y_pred`."""
        return ops.sum(ops.cast(_mask_rows(y_true, sample_weight) != 0, "float32"))


def _mask_rows(labels, sample_weight):
    """Remove the labels of rows with weight 0, because 0 times an infinite loss is NaN."""
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
        "`y_true` must fit the number of frames: one per label, and one per blank between equal labels. "
        f"Received: labels that need {needed[row]} frames, and {available[row]} frames in row {row}."
    )


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
            ValueError: in an eager call, if labels are negative or have padding before labels.
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
        ValueError: if `separator` is not a positive integer.

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
