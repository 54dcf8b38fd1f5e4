"""Tasks on an encoder: classes of sequences, classes of tokens, and answer spans."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.layers.parts.adaptation import sublayer_policy
from tf_sparse_attention.models.model import Model
from tf_sparse_attention.models.token_ids import CheckedInputs
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.types import Config, Tensor


class EncoderTask(CheckedInputs, Model):
    """An encoder, dropout, and a dense layer on its vectors.

    Args:
        encoder: a bidirectional `Backbone`, an `Encoder`, a backbone of KerasHub, dense or with its attention replaced,
            or another `keras.Model` whose output is float (B, T, D) or a dictionary with "sequence_output". It has
            `hidden_dim`, or is functional.
        num_outputs: outputs of the dense layer.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Raises:
        ValueError: for a wrong argument, and for a backbone that is causal.
    """

    def __init__(self, encoder: keras.layers.Layer, num_outputs: int, dropout: float = 0.0, **kwargs: Any) -> None:
        checks.check_keywords(self, kwargs)
        super().__init__(autocast=False, **kwargs)  # ids given as floats would be rounded to half precision
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
        """The encoder, by the name that other models have for what their outputs are made of."""
        return self.encoder

    @property
    def vocabulary_size(self) -> int | None:  # type: ignore[override]  # computed, where others keep it
        """The number of token ids; None where the encoder does not say it."""
        return getattr(self.encoder, "vocabulary_size", None)

    def encode(self, inputs: Tensor | dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Returns the outputs of the encoder by name, "sequence_output" (B, T, D) among them."""
        outputs = self.encoder(inputs, training=training)
        return outputs if isinstance(outputs, dict) else {"sequence_output": outputs}

    def logits(self, vectors: Tensor, training: bool | None = None) -> Tensor:
        """Returns what the head makes of vectors (..., D): float32 (..., outputs)."""
        return ops.cast(self.head(self.head_dropout(vectors, training=training)), "float32")

    def get_config(self) -> Config:
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**self.base_config(), "encoder": encoder, "dropout": self.dropout}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> "EncoderTask":
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects=custom_objects)
        return cls(**{**config, "encoder": encoder})


def get_padding_mask(inputs: Tensor | dict[str, Tensor]) -> Tensor | None:
    """Returns the padding mask among the inputs as bool (B, T), or None."""
    mask = inputs.get("padding_mask") if isinstance(inputs, dict) else None
    return None if mask is None else ops.cast(mask, "bool")


def _get_hidden_dim(encoder):
    """Returns the size of the vectors of an encoder, or raises a `ValueError` for what is none."""
    if not isinstance(encoder, keras.layers.Layer):
        raise ValueError(f"`encoder` must be a model that returns vectors (B, T, D). Received: encoder={encoder!r}.")
    if getattr(encoder, "causal", False):
        raise ValueError("`encoder` must see later tokens too: a `Backbone` with causal=False. Received: causal=True.")
    size = getattr(encoder, "hidden_dim", None)
    outputs = getattr(encoder, "output", None) if size is None and encoder.built else None
    outputs = outputs.get("sequence_output") if isinstance(outputs, dict) else outputs
    if size is None and outputs is not None and len(getattr(outputs, "shape", ())) == 3:
        size = outputs.shape[-1]
    if size is None:
        raise ValueError(
            "`encoder` must have an attribute `hidden_dim`, the size D of its vectors, or be a functional model that "
            f"returns (B, T, D), alone or as 'sequence_output'. Received: encoder={encoder!r}."
        )
    return size


POOLINGS = ("first", "mean", "pooler")


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SequenceClassifier(EncoderTask):
    """Logits of the class of a sequence: a dense layer on one vector that an encoder has of it.

    Args:
        encoder: a bidirectional `Backbone`, an `Encoder`, a backbone of KerasHub, dense or with its attention replaced
            by `tsa.convert.replace_attention`, or another `keras.Model` whose output is float (B, T, D) or a dictionary
            with "sequence_output". It has `hidden_dim`, or is functional.
        num_classes: C.
        pooling: "first" (default), the vector of the first token; "mean", that of all tokens that are no padding, zeros
            where there are none; or "pooler", the encoder's own "pooled_output", as BERT is fine-tuned.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: what the encoder reads: int (B, T), or a dictionary with "token_ids", and "padding_mask" (B, T), zero
            for padding, where rows have different lengths.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, C), for `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Raises:
        ValueError: for a wrong argument, a backbone that is causal, and "pooler" of an encoder that has none.

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
        return {**super().get_config(), "num_classes": self.num_classes, "pooling": self.pooling}


def _pooled(outputs):
    if "pooled_output" not in outputs:
        raise ValueError(
            "`pooling` must be 'first' or 'mean' for an encoder without a pooler. Received: pooling='pooler', and the "
            f"outputs {sorted(outputs)}."
        )
    return outputs["pooled_output"]


def _mean(vectors, mask):
    """Returns the mean (B, D) of the vectors (B, T, D) that are no padding, summed in float32."""
    x = ops.cast(vectors, "float32")
    if mask is None:
        return ops.mean(x, axis=1)
    total = ops.sum(ops.where(mask[..., None], x, 0), axis=1)
    return total / ops.maximum(ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True), 1)


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class TokenClassifier(EncoderTask):
    """Logits of the class of each token, such as its part of speech: a dense layer on an encoder's vectors.

    Tokens that have no class, such as padding and all but the first piece of a word, get a target that the loss
    ignores: `keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)`.

    Args:
        encoder: as for `SequenceClassifier`.
        num_classes: C.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: what the encoder reads, as for `SequenceClassifier`; with "segment_ids" of packed documents, where it
            takes them.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, T, C).

    Raises:
        ValueError: for a wrong argument, and for a backbone that is causal.

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
        return {**super().get_config(), "num_classes": self.num_classes}


ANSWER_MASK = "answer_mask"
LOWEST = -1e30  # of float32: a score of what cannot be chosen, with room for the sum of two


@keras.saving.register_keras_serializable(package="tf_sparse_attention")
class SpanAnswerer(EncoderTask):
    """Where the answer to a question begins and ends in a text, both read in one sequence: p(start) p(end).

    Devlin et al. 2019, section 4.2, and Longformer's for TriviaQA. The two targets of a row are classes among its
    tokens, so that the loss is `keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)` of
    targets int (B, 2), first and last token of the answer, or -1 where a row has none and does not count.

    Args:
        encoder: as for `SequenceClassifier`.
        max_answer_length: the most tokens of what `answer` finds. Default 30.
        dropout: rate before the dense layer, in training. Default 0.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: what the encoder reads, as for `SequenceClassifier`; a dictionary may also have "answer_mask" (B, T),
            not zero where an answer may be, so for tokens of the text and neither of the question nor separators.
            Padding is never chosen, and no answer holds what is not allowed. For rows without an answer let one token
            stand for that, such as the first.
        training: whether to apply dropout and update centroids.

    Returns:
        Float32 logits (B, 2, T), of the start and of the end; about -1e30 for tokens that may not be chosen.

    Raises:
        ValueError: for a wrong argument, and for a backbone that is causal.

    Example:
        >>> part = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 8, "window": 16}
        >>> encoder = tsa.models.Backbone(100, 2, 16, [part], intermediate_dim=32, causal=False)
        >>> model = SpanAnswerer(encoder, max_answer_length=5)
        >>> inputs = {"token_ids": np.ones((2, 20), "int32"), "answer_mask": np.arange(20)[None] >= [[6], [8]]}
        >>> tuple(model(inputs).shape)
        (2, 2, 20)
        >>> found = model.answer(inputs)
        >>> bool((found["start"] >= [6, 8]).all()), bool((found["end"] - found["start"] < 5).all())
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
        """Returns the most likely span of each row, of at most `max_answer_length` tokens.

        Args:
            inputs: as in a call, arrays.
            batch_size: rows that are computed at once. Default 32.

        Returns:
            Dictionary of "start" and "end", int32 (B,), its first and last token, and "log_prob", float32 (B,), that of
            the two. In rows in which no token may be chosen start and end are -1, and the last is -infinity.
        """
        logits = self.predict(inputs, batch_size=batch_size, verbose=0)
        start, end, log_prob = map(ops.convert_to_numpy, self.spans(ops.convert_to_tensor(logits)))
        return {"start": start, "end": end, "log_prob": log_prob}

    def spans(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns "start", "end" and "log_prob" as `answer` does, of logits float32 (B, 2, T)."""
        log_probs = ops.log_softmax(logits, axis=-1)
        length = ops.shape(logits)[-1]
        most = self.max_answer_length if not isinstance(length, int) else min(self.max_answer_length, length)
        allowed = logits[:, 0] > LOWEST / 2
        start, end, score = best_spans(log_probs[:, 0], log_probs[:, 1], most, allowed)
        exists = ops.any(allowed, axis=-1)
        return ops.where(exists, start, -1), ops.where(exists, end, -1), ops.where(exists, score, -float("inf"))

    def get_config(self) -> Config:
        return {**super().get_config(), "max_answer_length": self.max_answer_length}


def best_spans(
    start_scores: Tensor, end_scores: Tensor, max_length: int, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns start, end and score of the best span of each row, of at most `max_length` positions, in O(T L).

    The score of a span is that of its start plus that of its end, and start <= end < start + L. Of equal ones the first
    is chosen, and of those that start there the shortest.

    Args:
        start_scores: float32 (B, T).
        end_scores: float32 (B, T).
        max_length: L.
        allowed: bool (B, T), False for positions that no span may hold; where all are the result says nothing. None:
            none is.

    Returns:
        Triple of start and end, int32 (B,), both inside of the span, and its score, float32 (B,).

    Example:
        >>> start, end, score = best_spans(ops.array([[0.0, 5.0, 1.0]]), ops.array([[9.0, 0.0, 2.0]]), max_length=2)
        >>> int(start[0]), int(end[0]), float(score[0])
        (0, 0, 9.0)
    """
    rows, length = shape(start_scores)
    padded = ops.pad(end_scores, [(0, 0), (0, max_length - 1)], constant_values=LOWEST)
    places = ops.arange(length)[:, None] + ops.arange(max_length)[None]
    sums = start_scores[..., None] + ops.take(padded, places, axis=1)  # (B, T, L)
    if allowed is not None:
        before = ops.cumsum(ops.cast(ops.logical_not(allowed), "int32"), axis=1)  # up to each, itself included
        before = ops.pad(before, [(0, 0), (0, max_length - 1)], constant_values=-1)
        is_whole = ops.logical_and(allowed[..., None], ops.take(before, places, axis=1) == before[:, :length, None])
        sums = ops.where(is_whole, sums, 4 * LOWEST)
    sums = ops.reshape(sums, (rows, length * max_length))
    best = ops.cast(ops.argmax(sums, axis=-1), "int32")
    start = best // max_length
    return start, start + best % max_length, max_over(sums, axis=-1)
