"""Loss and metrics of language models. All ignore padding, id 0."""

import math
from typing import Any

import keras
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.data_parallel import mean_factor
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
