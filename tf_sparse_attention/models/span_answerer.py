"""Answers as spans of what is read, by an encoder."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tf_sparse_attention import checks
from tf_sparse_attention.models.encoder_task import EncoderTask, padding_mask_of
from tf_sparse_attention.ops.shapes import max_over, shape
from tf_sparse_attention.types import Config, Tensor

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
        mask = padding_mask_of(inputs)
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
