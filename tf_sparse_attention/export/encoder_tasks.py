"""SavedModels of classifiers: a text in, its label or those of its tokens out."""

import os
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.classifier_readme import make_classifier_readme
from tf_sparse_attention.export.language_model import checked_path, write_module
from tf_sparse_attention.export.scoring import TEXT
from tf_sparse_attention.export.texts import (
    check_encoder_task,
    constant_column,
    encoder_inputs,
    row_lengths,
    with_end,
)
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import SequenceClassifier, TokenClassifier


def export_classifier(
    model: SequenceClassifier | TokenClassifier,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    sequence_length: int = 1024,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel of a classifier with the signature `classify`: text in, labels and probabilities out.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example. A text is
    read with the start id before it and the end id after it, as the task `classify` of the trainer has it; one of more
    than `sequence_length` ids with these is cut there, and `is_cut` says so. All rows are computed at once.

    - of a `SequenceClassifier`: text, string (B,) -> label, string (B,), the likeliest; probabilities, float32 (B, C),
      in the order of `labels`; num_tokens, int32 (B,), of the text that were read; is_cut, bool (B,).
    - of a `TokenClassifier`: the same of each token, label (B, T) and probabilities (B, T, C), with tokens, string
      (B, T), what each is; after the `num_tokens` of a row there are empty texts and zeros.

    Args:
        model: `SequenceClassifier` or `TokenClassifier`, on the TensorFlow backend.
        path: folder to write, see `export_saved_model`.
        tokenizer: the tokenizer the model was trained with.
        labels: the C labels, in the order of the classes.
        sequence_length: maximal number of ids of a text, that of training. Default: 1024.
        weight_dtype: see `export_saved_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, tokenizer, labels or path are not suitable.

    Example:
        >>> export_classifier(model, "classifier", ByteTokenizer(), labels=["ham", "spam"])
        >>> tf.saved_model.load("classifier").signatures["classify"](text=tf.constant(["Buy now!"]))["label"]
    """
    check_encoder_task(model, (SequenceClassifier, TokenClassifier), tokenizer, sequence_length, weight_dtype)
    if isinstance(labels, str) or len(labels) != model.num_classes or not all(isinstance(x, str) for x in labels):
        raise ValueError(f"`labels` must be {model.num_classes} texts, those of the classes. Received: {labels!r}.")
    folder = checked_path(path)
    served = tf.Module(name="classifier")
    served.weights = weights = Weights(model, weight_dtype)
    served.tokenizer = tokenizer.trackable
    of_tokens = isinstance(model, TokenClassifier)
    outputs = _of_tokens if of_tokens else _of_texts
    served.classify = _classify_function(model, tokenizer, weights, sequence_length, list(labels), outputs)
    readme = make_classifier_readme(model, tokenizer, weights, labels, sequence_length, folder.name)
    write_module(served, folder, ["classify"], readme)
    return folder


def _classify_function(model, tokenizer, weights, sequence_length, labels, outputs):
    def classify(text):
        ids = tokenizer.tokenize(text)
        whole = tf.concat([constant_column(ids, tokenizer.start_id), with_end(ids, tokenizer.end_id)], axis=1)
        kept = whole[:, :sequence_length]
        rows, lengths = tf.cast(kept.to_tensor(), tf.int32), row_lengths(kept)
        with weights.scope():
            logits = model(encoder_inputs(model, rows, lengths), training=False)
        num_tokens = tf.minimum(row_lengths(ids), sequence_length - 1)
        found = outputs(tokenizer, labels, tf.nn.softmax(logits), rows, num_tokens)
        return {**found, "num_tokens": num_tokens, "is_cut": row_lengths(whole) > sequence_length}

    return tf.function(classify, input_signature=[TEXT], autograph=False)


def _of_texts(tokenizer, labels, probabilities, rows, num_tokens):
    return {"label": tf.gather(labels, tf.argmax(probabilities, axis=-1)), "probabilities": probabilities}


def _of_tokens(tokenizer, labels, probabilities, rows, num_tokens):
    longest = tf.reduce_max(tf.concat([num_tokens, [0]], axis=0))
    ids, probabilities = rows[:, 1 : 1 + longest], probabilities[:, 1 : 1 + longest]
    is_token = tf.range(longest) < num_tokens[:, None]
    tokens = tf.reshape(tokenizer.detokenize(tf.reshape(ids, (-1, 1))), tf.shape(ids))
    label = tf.gather(labels, tf.argmax(probabilities, axis=-1))
    return {
        "label": tf.where(is_token, label, ""),
        "probabilities": tf.where(is_token[..., None], probabilities, 0),
        "tokens": tf.where(is_token, tokens, ""),
    }
