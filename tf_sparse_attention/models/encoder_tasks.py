"""Task models on an encoder: sequence classification, token classification and extractive question answering."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.inputs import CheckedInputs
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.types import Config, Tensor


class EncoderTask(CheckedInputs, Model):
    """Encoder with dropout and a dense layer on its output vectors.

    Args:
        encoder: as for `SequenceClassifier`.
        num_outputs: number of outputs of the dense layer.
        dropout: dropout rate before the dense layer. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: if an argument is invalid or `encoder` is causal.
    """

    _model_arguments = ("encoder",)

    def __init__(self, encoder: keras.layers.Layer, num_outputs: int, dropout: float = 0.0, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # float ids would be rounded to half precision
        checks.check_rate("dropout", dropout)
        size = _get_hidden_dim(encoder)
        self.encoder = encoder
        self.dropout = dropout
        self.head_dropout = keras.layers.Dropout(dropout, name="head_dropout", dtype=self.dtype_policy)
        self.head = keras.layers.Dense(num_outputs, name="head", dtype=sublayer_policy(self, "head"))
        self.head.build((None, size))
        self.built = True

    @property
    def backbone(self) -> Any:
        """The encoder."""
        return self.encoder

    @property
    def vocabulary_size(self) -> int | None:  # type: ignore[override]  # a property, not an attribute
        """Number of token ids, or None if the encoder has no `vocabulary_size`."""
        return getattr(self.encoder, "vocabulary_size", None)

    def encode(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Return the outputs of the encoder by name, including "sequence_output" (B, T, D)."""
        outputs = self.encoder(inputs, training=training)
        return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}

    def logits(self, vectors: Tensor, training: bool | None = None) -> Tensor:
        """Compute the outputs of the head for vectors (..., D): float32 (..., outputs)."""
        return ops.cast(self.head(self.head_dropout(vectors, training=training)), "float32")


def get_padding_mask(inputs: Tensor | dict[str, Tensor]) -> Tensor | None:
    """Return the padding mask of the inputs as bool (B, T), or None."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _get_hidden_dim(encoder):
    """Return the vector size of an encoder, or raise a `ValueError` for an invalid encoder."""
    if not isinstance(encoder, keras.layers.Layer):
        raise ValueError(f"`encoder` must be a model that returns vectors (B, T, D). Received: encoder={encoder!r}.")
    if getattr(encoder, "causal", False):
        raise ValueError("`encoder` must be bidirectional: a `Backbone` with causal=False. Received: causal=True.")
    size = getattr(encoder, "hidden_dim", None)
    outputs = getattr(encoder, "output", None) if size is None and encoder.built else None
    outputs = outputs.get("sequence_output") if isinstance(outputs, dict) else outputs
    if size is None and outputs is not None and len(getattr(outputs, "shape", ())) == 3:
        size = outputs.shape[-1]
    if size is None:
        raise ValueError(
            "`encoder` must have an attribute `hidden_dim`, the size D of its vectors, or be a functional model that "
            f"returns (B, T, D) or a dictionary with 'sequence_output'. Received: encoder={encoder!r}."
        )
    return size


POOLINGS = ("first", "mean", "pooler")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SequenceClassifier(EncoderTask):
    """Sequence classification: encoder, pooling and a dense layer.

    Args:
        encoder: a bidirectional `Backbone`, an `Encoder`, a KerasHub backbone, or another `keras.Model` that returns
            float (B, T, D) or a dictionary with "sequence_output". It must have `hidden_dim` or be functional. Dense
            attention may be replaced by `tsa.convert.replace_attention`.
        num_classes: C, number of classes.
        pooling: "first": the vector of the first token. "mean": the mean over all tokens except padding, or zeros for a
            row of padding. "pooler": "pooled_output" of the encoder, as in BERT. Default "first".
        dropout: dropout rate before the dense layer. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: inputs of the encoder: int (B, T), or a dictionary with "token_ids" and optional "padding_mask" (B, T),
            zero for padding.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, C), for `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Raises:
        ValueError: if an argument is invalid, `encoder` is causal, or an encoder for "pooler" has no pooler.

    Example:
        >>> part = {"layer": "ClusteredAttention", "num_heads": 2, "key_dim": 8, "num_clusters": 4}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> model = SequenceClassifier(encoder, num_classes=3, pooling="mean")
        >>> tuple(model(keras.ops.ones((2, 20), "int32")).shape)
        (2, 3)
    """

    def __init__(
        self,
        encoder: keras.layers.Layer,
        num_classes: int,
        pooling: str = "first",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        checks.check_count("num_classes", num_classes)
        checks.check_choice("pooling", pooling, POOLINGS)
        super().__init__(encoder, num_classes, dropout, **kwargs)
        self.num_classes = num_classes
        self.pooling = pooling

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        outputs = self.encode(inputs, training)
        if self.pooling == "pooler":
            return self.logits(_pooled(outputs), training)
        vectors = outputs["sequence_output"]
        if self.pooling == "first":
            return self.logits(vectors[:, 0], training)
        return self.logits(_mean(vectors, get_padding_mask(inputs)), training)

    def get_config(self) -> Config:
        return self.base_config("num_classes", "pooling", "dropout")


def _pooled(outputs):
    if "pooled_output" not in outputs:
        raise ValueError(
            "`pooling` must be 'first' or 'mean' if the encoder has no pooler. Received: pooling='pooler', and the "
            f"outputs {sorted(outputs)}."
        )
    return outputs["pooled_output"]


def _mean(vectors, mask):
    """Return the mean (B, D) of vectors (B, T, D) without padding, summed in float32."""
    x = ops.cast(vectors, "float32")
    if mask is None:
        return ops.mean(x, axis=1)
    total = ops.sum(ops.where(mask[..., None], x, 0), axis=1)
    return total / ops.maximum(ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True), 1)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class TokenClassifier(EncoderTask):
    """Token classification, such as part-of-speech tagging: encoder and a dense layer.

    Tokens without a class, such as padding and later pieces of a word, get the target -1 with the loss
    `keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)`.

    Args:
        encoder: as for `SequenceClassifier`.
        num_classes: C, number of classes.
        dropout: dropout rate before the dense layer. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: as for `SequenceClassifier`, with "segment_ids" of packed documents if the encoder accepts them.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, T, C).

    Raises:
        ValueError: if an argument is invalid or `encoder` is causal.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> tuple(TokenClassifier(encoder, num_classes=3)(keras.ops.ones((2, 20), "int32")).shape)
        (2, 20, 3)
    """

    def __init__(self, encoder: keras.layers.Layer, num_classes: int, dropout: float = 0.0, **kwargs: Any) -> None:
        checks.check_count("num_classes", num_classes)
        super().__init__(encoder, num_classes, dropout, **kwargs)
        self.num_classes = num_classes

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        return self.logits(self.encode(inputs, training)["sequence_output"], training)

    def get_config(self) -> Config:
        return self.base_config("num_classes", "dropout")


ANSWER_MASK = "answer_mask"
LOWEST = -1e30  # score of masked positions; sums of two scores stay within float32


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SpanAnswerer(EncoderTask):
    """Extractive question answering: logits of the first and last token of the answer.

    Question and text are one sequence. p(answer) = p(start) p(end), as in BERT (Devlin et al. 2019, section 4.2) and in
    Longformer for TriviaQA. The loss is `keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)`
    with targets int (B, 2): first and last token of the answer, or -1 for rows to ignore. For questions without an
    answer, allow one more token, such as the first, and use that token as the target.

    Args:
        encoder: as for `SequenceClassifier`.
        max_answer_length: maximum number of tokens of an answer from `answer`. Default 30.
        dropout: dropout rate before the dense layer. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: as for `SequenceClassifier`. A dictionary may also have "answer_mask" (B, T), nonzero for tokens that an
            answer may contain, such as the tokens of the text. Padding is never part of an answer.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, 2, T) of start and end; -1e30 for tokens that an answer must not contain.

    Raises:
        ValueError: if an argument is invalid or `encoder` is causal.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> model = SpanAnswerer(encoder, max_answer_length=5)
        >>> inputs = {"token_ids": np.ones((2, 20), "int32"), "answer_mask": np.arange(20)[None] >= [[6], [8]]}
        >>> tuple(model(inputs).shape)
        (2, 2, 20)
        >>> answer = model.answer(inputs)
        >>> bool((answer["start"] >= [6, 8]).all()), bool((answer["end"] - answer["start"] < 5).all())
        (True, True)
    """

    def __init__(
        self, encoder: keras.layers.Layer, max_answer_length: int = 30, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        checks.check_count("max_answer_length", max_answer_length)
        super().__init__(encoder, 2, dropout, **kwargs)
        self.max_answer_length = max_answer_length

    def call(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> Tensor:
        mask = get_padding_mask(inputs)
        if isinstance(inputs, dict) and ANSWER_MASK in inputs:
            inputs = dict(inputs)
            allowed = ops.cast(inputs.pop(ANSWER_MASK), "bool")
            mask = allowed if mask is None else ops.logical_and(mask, allowed)
        logits = self.logits(self.encode(inputs, training)["sequence_output"], training)
        logits = ops.transpose(logits, (0, 2, 1))  # (B, 2, T)
        return logits if mask is None else ops.where(mask[:, None], logits, LOWEST)

    def answer(self, inputs: Tensor | dict[str, Tensor], batch_size: int = 32) -> dict[str, np.ndarray]:
        """Return the most likely span of each row, of at most `max_answer_length` tokens.

        Args:
            inputs: as in a call, arrays.
            batch_size: rows per batch. Default 32.

        Returns:
            Dictionary of "start" and "end", int32 (B,), the first and last token; and "log_prob", float32 (B,): log
            p(start) + log p(end). If a row has no allowed token, start and end are -1 and log_prob is -infinity.
        """
        logits = self.predict(inputs, batch_size=batch_size, verbose=0)
        start, end, log_prob = map(ops.convert_to_numpy, self.spans(ops.convert_to_tensor(logits)))
        return {"start": start, "end": end, "log_prob": log_prob}

    def spans(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return start, end and log-probability as in `answer`, for logits float32 (B, 2, T)."""
        log_probs = ops.log_softmax(logits, axis=-1)
        length = ops.shape(logits)[-1]
        max_length = self.max_answer_length if not isinstance(length, int) else min(self.max_answer_length, length)
        allowed = logits[:, 0] > LOWEST / 2
        start, end, score = best_spans(log_probs[:, 0], log_probs[:, 1], max_length, allowed)
        exists = ops.any(allowed, axis=-1)
        return ops.where(exists, start, -1), ops.where(exists, end, -1), ops.where(exists, score, -float("inf"))

    def get_config(self) -> Config:
        return self.base_config("max_answer_length", "dropout")


def best_spans(
    start_scores: Tensor, end_scores: Tensor, max_length: int, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return start, end and score of the best span of each row, of at most `max_length` positions. Cost: O(T L).

    The score of a span is its start score plus its end score. Ties: the span that starts first, then the shortest.

    Args:
        start_scores: float32 (B, T).
        end_scores: float32 (B, T).
        max_length: L, maximum number of positions.
        allowed: bool (B, T), False for positions that a span must not contain. Results of rows without an allowed
            position are undefined. None: all positions are allowed.

    Returns:
        Triple of start and end, int32 (B,), both part of the span, and its score, float32 (B,).

    Example:
        >>> start, end, score = best_spans(ops.array([[0.0, 5.0, 1.0]]), ops.array([[9.0, 0.0, 2.0]]), max_length=2)
        >>> int(start[0]), int(end[0]), float(score[0])
        (0, 0, 9.0)
    """
    rows, length = shape(start_scores)
    padded = ops.pad(end_scores, [(0, 0), (0, max_length - 1)], constant_values=LOWEST)
    ends = ops.arange(length)[:, None] + ops.arange(max_length)[None]
    sums = start_scores[..., None] + ops.take(padded, ends, axis=1)  # (B, T, L)
    if allowed is not None:
        masked = ops.cumsum(ops.cast(ops.logical_not(allowed), "int32"), axis=1)  # count up to each position
        masked = ops.pad(masked, [(0, 0), (0, max_length - 1)], constant_values=-1)
        is_allowed = ops.logical_and(allowed[..., None], ops.take(masked, ends, axis=1) == masked[:, :length, None])
        sums = ops.where(is_allowed, sums, 4 * LOWEST)
    sums = ops.reshape(sums, (rows, length * max_length))
    best = ops.cast(ops.argmax(sums, axis=-1), "int32")
    start = best // max_length
    return start, start + best % max_length, max_over(sums, axis=-1)
