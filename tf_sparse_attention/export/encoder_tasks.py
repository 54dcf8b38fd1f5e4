"""SavedModels of encoders for text classification, token classification and extractive question answering."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.input_checks import (
    check_codec,
    check_kind,
    check_labels,
    check_length,
    require,
    same_rows,
)
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import append_end, maximum, row_lengths, with_start_and_end
from tf_sparse_attention.models import Backbone, Encoder, SequenceClassifier, SpanAnswerer, TokenClassifier
from tf_sparse_attention.models.encoder_tasks import ANSWER_MASK, EncoderTask
from tf_sparse_attention.types import Tensor

INPUTS = ("token_ids", "padding_mask")
SEGMENTS = "segment_ids"  # input of KerasHub encoders, zeros for a single text


def export_classifier(
    model: SequenceClassifier | TokenClassifier,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    sequence_length: int = 1024,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of a classifier with the signature `classify`: text in, labels and probabilities out.

    The model reads the start id, the text and the end id, as in the trainer's task `classify`. A text is truncated if
    it has more than `sequence_length` ids, including start and end id; `is_cut` is then True. All rows are computed in
    one batch.

    - `SequenceClassifier`: text, string (B,) -> label, string (B,), the most likely label; probabilities, float32
      (B, C), in the order of `labels`; num_tokens, int32 (B,), the text tokens after truncation; is_cut, bool (B,).
    - `TokenClassifier`: the same per token, label (B, T) and probabilities (B, T, C), with tokens, string (B, T), the
      text of each token. Positions after `num_tokens` have empty strings and zeros.

    Args:
        model: `SequenceClassifier` or `TokenClassifier`, on the TensorFlow backend.
        path, weight_dtype: see `export_language_model`.
        tokenizer: the tokenizer that the model was trained with.
        labels: the C labels, in the order of the classes.
        sequence_length: maximum number of ids of a text, as in training. Default: 1024.

    Raises:
        ValueError: On another backend, or if the model, tokenizer, labels or path are not supported.

    Example:
        >>> export_classifier(model, "classifier", ByteTokenizer(), labels=["ham", "spam"])
        >>> tf.saved_model.load("classifier").signatures["classify"](text=tf.constant(["Buy now!"]))["label"]
    """
    _check_encoder_task(model, (SequenceClassifier, TokenClassifier), tokenizer, sequence_length)
    check_labels(labels, model.num_classes)
    names = json.dumps(list(labels), ensure_ascii=False)
    description = f"It reads ids of `{type(tokenizer).__name__}`. The labels, in the order of the classes: `{names}`"
    signatures = {"classify": _classify(model, tokenizer, list(labels), sequence_length)}
    return write_saved_model(path, model, signatures, "A classifier", description, [tokenizer], weight_dtype)


def export_span_answerer(
    model: SpanAnswerer,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    sequence_length: int = 1024,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of a `SpanAnswerer` with the signature `answer`: question and text in, a span of the text out.

    The model reads the start id, the question, the end id, the text and the end id, and must be trained in this format.
    All rows are computed in one batch.

    - `answer`: question and text, string (B,) -> answer, string (B,), the most likely span of the text; start and end,
      int32 (B,), indices of its first and last token in the text; log_prob, float32 (B,), log p(start) + log p(end);
      num_tokens, int32 (B,), the text tokens after truncation, and is_cut, bool (B,), whether question and text have
      more than `sequence_length` ids. For a text without tokens, start and end are -1, and log_prob is -infinity. A
      question of more than `sequence_length` - 4 tokens is an error.

    Args:
        model: `SpanAnswerer`, on the TensorFlow backend.
        path, tokenizer, sequence_length, weight_dtype: see `export_classifier`.

    Raises:
        ValueError: On another backend, or if the model, tokenizer or path is not supported.

    Example:
        >>> export_span_answerer(model, "answerer", ByteTokenizer())
        >>> served = tf.saved_model.load("answerer").signatures["answer"]
        >>> served(question=tf.constant(["Who came?"]), text=tf.constant(["The old man came."]))["answer"]
    """
    _check_encoder_task(model, (SpanAnswerer,), tokenizer, sequence_length)
    title, description = "An extractive question answering model", f"It reads ids of `{type(tokenizer).__name__}`."
    signatures = {"answer": _answer(model, tokenizer, sequence_length)}
    return write_saved_model(path, model, signatures, title, description, [tokenizer], weight_dtype)


def _check_encoder_task(model, kinds, tokenizer, sequence_length):
    """Raise a `ValueError` unless the model is of one of `kinds` and fits the tokenizer and `sequence_length`."""
    check_kind(model, kinds)
    check_codec("tokenizer", tokenizer, Tokenizer, model.vocabulary_size)
    check_length("sequence_length", sequence_length, getattr(model.encoder, "max_length", None))
    if sequence_length < 4:
        raise ValueError(f"`sequence_length` must be at least 4. Received: sequence_length={sequence_length}.")
    check_encoder_inputs(model)


def check_encoder_inputs(model: EncoderTask) -> None:
    """Raise a `ValueError` unless `encoder_inputs` returns all inputs of the model's encoder."""
    missing = _input_names(model.encoder) - {*INPUTS, SEGMENTS}
    if missing:
        raise ValueError(
            f"`model` must have an encoder whose inputs are {INPUTS[0]!r}, {INPUTS[1]!r} and optionally {SEGMENTS!r}. "
            f"Export other models with `model.export`. Received: an encoder with the inputs {sorted(missing)}."
        )


def _input_names(encoder):
    """Return the names of the inputs of an encoder."""
    if isinstance(encoder, (Backbone, Encoder)):
        return set(INPUTS)
    inputs = getattr(encoder, "input", None)
    return set(inputs) if isinstance(inputs, dict) else {"a single input"}


def encoder_inputs(model: EncoderTask, ids: Tensor, lengths: Tensor) -> dict[str, Any]:
    """Return the inputs of a model for ids, int32 (B, T), and row lengths, int32 (B,)."""
    mask = tf.range(tf.shape(ids)[1]) < lengths[:, None]
    segments = {SEGMENTS: tf.zeros_like(ids)} if SEGMENTS in _input_names(model.encoder) else {}
    return {"token_ids": tf.where(mask, ids, 0), "padding_mask": mask, **segments}


def _classify(model, tokenizer, labels, sequence_length):
    is_token_classifier = isinstance(model, TokenClassifier)

    def classify(text):
        ids = tokenizer.tokenize(text)
        whole = with_start_and_end(ids, tokenizer)
        rows, inputs = _truncate(model, whole, sequence_length)
        probabilities = tf.nn.softmax(model(inputs, training=False))
        outputs = {
            "label": tf.gather(labels, tf.argmax(probabilities, axis=-1)),
            "probabilities": probabilities,
            "num_tokens": tf.minimum(row_lengths(ids), sequence_length - 1),
            "is_cut": row_lengths(whole) > sequence_length,
        }
        return _per_token(tokenizer, rows, outputs) if is_token_classifier else outputs

    outputs = {
        "label": "the most likely label",
        "probabilities": "probability of each label",
        "num_tokens": "number of text tokens after truncation",
        "is_cut": f"whether the text was truncated to {sequence_length} ids, including start and end id",
    }
    inputs = [Input.strings("text", "bytes, valid UTF-8 or not", "def main():", "A line of text.")]
    if not is_token_classifier:
        return Signature(classify, inputs, outputs, "labels of texts")
    outputs["tokens"] = "text of each token"
    notes = 'After the last token of a row, labels and tokens are "" and probabilities are 0.'
    return Signature(classify, inputs, outputs, "labels of tokens", notes)


def _truncate(model, ids, sequence_length):
    """Return ragged ids of at most `sequence_length` per row as int32 (B, T), and the inputs of the model for them."""
    kept = ids[:, :sequence_length]
    rows = tf.cast(kept.to_tensor(), tf.int32)
    return rows, encoder_inputs(model, rows, row_lengths(kept))


def _per_token(tokenizer, rows, outputs):
    """Return the outputs per text token, without the positions of the start and end id."""
    num_tokens = outputs["num_tokens"]
    longest = maximum(num_tokens, 0)
    ids, label, probabilities = (x[:, 1 : 1 + longest] for x in (rows, outputs["label"], outputs["probabilities"]))
    is_token = tf.range(longest) < num_tokens[:, None]
    tokens = tf.reshape(tokenizer.detokenize(tf.reshape(ids, (-1, 1))), tf.shape(ids))
    return {
        **outputs,
        "label": tf.where(is_token, label, ""),
        "probabilities": tf.where(is_token[..., None], probabilities, 0),
        "tokens": tf.where(is_token, tokens, ""),
    }


def _answer(model, tokenizer, sequence_length):
    def answer(question, text):
        question = require(question, same_rows(("question", "text"), question, text))
        questions, ids = with_start_and_end(tokenizer.tokenize(question), tokenizer), tokenizer.tokenize(text)
        first = row_lengths(questions)
        longest, message = maximum(first, 0), f"`question` must have at most {sequence_length - 4} tokens."
        first = require(first, (longest <= sequence_length - 2, message, longest - 2))
        whole = tf.concat([questions, append_end(ids, tokenizer)], axis=1)
        rows, inputs = _truncate(model, whole, sequence_length)
        num_tokens = tf.minimum(row_lengths(ids), sequence_length - first)
        positions = tf.range(tf.shape(rows)[1])
        is_text = (positions >= first[:, None]) & (positions < (first + num_tokens)[:, None])
        logits = model({**inputs, ANSWER_MASK: is_text}, training=False)
        start, end, log_prob = model.spans(keras.ops.convert_to_tensor(logits))
        is_answer = (positions >= start[:, None]) & (positions <= end[:, None])
        return {
            "answer": tokenizer.detokenize(tf.ragged.boolean_mask(rows, is_answer)),
            "start": tf.where(start < 0, -1, start - first),
            "end": tf.where(start < 0, -1, end - first),
            "log_prob": log_prob,
            "num_tokens": num_tokens,
            "is_cut": row_lengths(whole) > sequence_length,
        }

    inputs = [
        Input.strings("question", f"at most {sequence_length - 4} tokens", "Who came?"),
        Input.strings("text", f"truncated to fit {sequence_length} ids with the question", "The old man came."),
    ]
    outputs = {
        "answer": f'the most likely span of the text, of at most {model.max_answer_length} tokens; or ""',
        "start": "index in the text of the first token of the answer; -1 without an answer",
        "end": "index in the text of the last token of the answer",
        "log_prob": "log-probability of start and end, in nats",
        "num_tokens": "number of text tokens after truncation",
        "is_cut": "whether the text was truncated",
    }
    return Signature(answer, inputs, outputs, "answers to questions, as spans of the text")
