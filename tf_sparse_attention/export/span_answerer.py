"""SavedModels that answer a question by a span of a text."""

import os
import pathlib

import keras
import tensorflow as tf

from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.classifier_readme import make_classifier_readme
from tf_sparse_attention.export.language_model import checked_path, write_module
from tf_sparse_attention.export.sampling_loop import checks_of, strings
from tf_sparse_attention.export.texts import (
    check_encoder_task,
    constant_column,
    encoder_inputs,
    row_lengths,
    with_end,
)
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import SpanAnswerer
from tf_sparse_attention.models.span_answerer import ANSWER_MASK


def export_span_answerer(
    model: SpanAnswerer,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    sequence_length: int = 1024,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel of a `SpanAnswerer` with the signature `answer`: a question and a text in, a part of it out.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example. The model
    reads the start id, the question, the end id, the text and the end id, and has to be trained so. All rows are
    computed at once.

    - `answer`: question and text, string (B,) -> answer, string (B,), the likeliest span of the text; start and end,
      int32 (B,), its first and last token, counted in the text; log_prob, float32 (B,), of the two; num_tokens, int32
      (B,), of the text that were read, and is_cut, bool (B,), where both have more than `sequence_length` ids. In a
      text without tokens there is no answer: start and end are -1, and log_prob is -infinity. A question that leaves no
      room for the text is an error.

    Args:
        model: `SpanAnswerer`, on the TensorFlow backend.
        path, tokenizer, sequence_length, weight_dtype: see `export_classifier`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, tokenizer or path is not suitable.

    Example:
        >>> export_span_answerer(model, "answerer", ByteTokenizer())
        >>> served = tf.saved_model.load("answerer").signatures["answer"]
        >>> served(question=tf.constant(["Who came?"]), text=tf.constant(["The old man came."]))["answer"]
    """
    check_encoder_task(model, (SpanAnswerer,), tokenizer, sequence_length, weight_dtype)
    folder = checked_path(path)
    served = tf.Module(name="span_answerer")
    served.weights = weights = Weights(model, weight_dtype)
    served.tokenizer = tokenizer.trackable
    served.answer = _answer_function(model, tokenizer, weights, sequence_length)
    readme = make_classifier_readme(model, tokenizer, weights, (), sequence_length, folder.name)
    write_module(served, folder, ["answer"], readme)
    return folder


def _answer_function(model, tokenizer, weights, sequence_length):
    def answer(question, text):
        same = tf.size(question) == tf.size(text)
        conditions = [(same, "`question` and `text` must have as many rows.", tf.size(text))]
        with tf.control_dependencies(checks_of(conditions)):
            asked, ids = tokenizer.tokenize(question), tokenizer.tokenize(text)
        asked = tf.concat([constant_column(asked, tokenizer.start_id), with_end(asked, tokenizer.end_id)], axis=1)
        first = row_lengths(asked)
        longest = tf.reduce_max(tf.concat([first, [0]], axis=0))
        message = f"`question` must have at most {sequence_length - 4} tokens."
        with tf.control_dependencies(checks_of([(longest <= sequence_length - 2, message, longest - 2)])):
            whole = tf.concat([asked, with_end(ids, tokenizer.end_id)], axis=1)
        kept = whole[:, :sequence_length]
        rows, lengths = tf.cast(kept.to_tensor(), tf.int32), row_lengths(kept)
        num_tokens = tf.minimum(row_lengths(ids), sequence_length - first)
        places = tf.range(tf.shape(rows)[1])
        is_text = (places >= first[:, None]) & (places < (first + num_tokens)[:, None])
        with weights.scope():
            logits = model({**encoder_inputs(model, rows, lengths), ANSWER_MASK: is_text}, training=False)
        start, end, log_prob = model.spans(keras.ops.convert_to_tensor(logits))
        is_answer = (places >= start[:, None]) & (places <= end[:, None])
        return {
            "answer": tokenizer.detokenize(tf.ragged.boolean_mask(rows, is_answer)),
            "start": tf.where(start < 0, -1, start - first),
            "end": tf.where(start < 0, -1, end - first),
            "log_prob": log_prob,
            "num_tokens": num_tokens,
            "is_cut": row_lengths(whole) > sequence_length,
        }

    return tf.function(answer, input_signature=[strings("question"), strings("text")], autograph=False)
