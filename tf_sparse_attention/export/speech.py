"""SavedModels of speech recognizers: features or recordings in, transcripts out."""

import functools
import json
import os
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from tf_sparse_attention.data import LogMel
from tf_sparse_attention.export.input_checks import check_kind, check_labels, require, valid_lengths
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.generation import ctc_greedy
from tf_sparse_attention.models import SpeechRecognizer


def export_speech(
    model: SpeechRecognizer,
    path: str | os.PathLike,
    labels: Sequence[str],
    separator: str = "",
    log_mel: LogMel | None = None,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of a recognizer with the signature `transcribe`, and with `log_mel` also `transcribe_sound`.

    - `transcribe`: features, float32 (B, T, F), padded on the right, and num_frames, int32 (B,) -> text, string (B,),
      from greedy CTC decoding; num_labels, int32 (B,), the number of labels in `text`; log_prob, float32 (B,), the
      log-probability of the greedy alignment, in nats; log_probs, float32 (B, T', V + 1), the log-probabilities of the
      blank and the labels per subsampled frame, for other decoders. All rows are computed in one batch.
    - `transcribe_sound`: samples, float32 (B, N) in [-1, 1], padded on the right, and num_samples, int32 (B,) -> the
      same outputs, for the features of `log_mel`.

    Args:
        model: `SpeechRecognizer`, on the TensorFlow backend.
        labels: the V labels as text, the label of id 1 first.
        separator: text between two labels of a transcript. Default: "", as for characters; " " is usual for phonemes.
        log_mel: the `LogMel` that computes the model's features. None (default): no `transcribe_sound`.
        path, weight_dtype: see `export_language_model`.

    Raises:
        ValueError: On another backend, or if the model, labels, `log_mel` or path are not supported.

    Example:
        >>> export_speech(model, "recognizer", labels=["a", "b", " "], log_mel=LogMel(num_bands=40))
        >>> served = tf.saved_model.load("recognizer").signatures
        >>> served["transcribe_sound"](samples=samples, num_samples=tf.constant([16_000]))["text"]
    """
    check_kind(model, (SpeechRecognizer,))
    check_labels(labels, model.vocabulary_size)
    if not isinstance(separator, str):
        raise ValueError(f"`separator` must be a string. Received: separator={separator!r}.")
    if log_mel is not None and (not isinstance(log_mel, LogMel) or log_mel.num_bands != model.num_features):
        found = log_mel.num_bands if isinstance(log_mel, LogMel) else repr(log_mel)
        raise ValueError(
            f"`log_mel` must be a `LogMel` of {model.num_features} bands, the features of the model. Received: {found}."
        )
    transcribe = functools.partial(_transcribe, model, list(labels), separator)
    num_features, num_frames = model.num_features, min(100, _max_frames(model) or 100)
    signatures = {
        "transcribe": transcribe(
            Input(
                tf.TensorSpec((None, None, num_features), tf.float32, "features"),
                "features of recordings, padded on the right, not normalized",
                f"tf.zeros((1, {num_frames}, {num_features}))",
            ),
            Input(tf.TensorSpec((None,), tf.int32, "num_frames"), "from 1 to T", f"tf.constant([{num_frames}])"),
            lambda features, num_frames: (features, num_frames),
            "Frames after the last frame of a row are blank with probability 1.",
        )
    }
    if log_mel is not None:
        config = log_mel.get_config()
        rate = config["sample_rate"]
        notes = (
            "Features are the logarithms of {num_bands} mel bands from {lowest} to {highest} Hz, in windows of\n"
            "{window} s every {hop} s, with pre-emphasis {pre_emphasis}. Recordings are not resampled."
        )
        signatures["transcribe_sound"] = transcribe(
            Input(
                tf.TensorSpec((None, None), tf.float32, "samples"),
                f"recordings in [-1, 1], {rate} samples per second, padded on the right",
                f"tf.zeros((1, {rate}))",
            ),
            Input(tf.TensorSpec((None,), tf.int32, "num_samples"), "from 1 to T", f"tf.constant([{rate}])"),
            lambda samples, num_samples: (log_mel(samples, num_samples), log_mel.num_frames(num_samples)),
            notes.format(**config),
        )
    description = (
        f"{model.encoder.num_layers} blocks. Id 0 is the blank. The labels from id 1 on, joined by "
        f"{json.dumps(separator)} in transcripts:\n`{json.dumps(list(labels), ensure_ascii=False)}`"
    )
    return write_saved_model(path, model, signatures, "A speech recognizer", description, weight_dtype=weight_dtype)


def _max_frames(model):
    """Return the largest number of frames of a recording, or None."""
    return None if model.encoder.max_length is None else model.encoder.max_length * model.subsampling


def _transcribe(model, labels, separator, recordings, lengths, compute_features, notes):
    """Return the signature of two inputs, `recordings` and their `lengths`.

    `compute_features` maps them to features, float32 (B, T, F), and their lengths, int32 (B,).
    """
    limit, name, lengths_name = _max_frames(model), recordings.spec.name, lengths.spec.name

    def transcribe(rows, row_lengths):
        row_lengths = require(row_lengths, *valid_lengths(lengths_name, row_lengths, rows, 1))
        features, num_frames = compute_features(rows, row_lengths)
        length = tf.shape(features)[1]
        if limit is not None:
            num_frames = require(num_frames, (length <= limit, f"`{name}` must have at most {limit} frames.", length))
        mask = tf.sequence_mask(num_frames, length)
        log_probs = model({"features": tf.where(mask[..., None], features, 0), "padding_mask": mask}, training=False)
        ids = ctc_greedy(log_probs)
        num_labels = tf.reduce_sum(tf.cast(ids > 0, tf.int32), axis=1)
        words = tf.RaggedTensor.from_tensor(tf.gather(["", *labels], ids), num_labels)
        return {
            "text": tf.strings.reduce_join(words, axis=1, separator=separator),
            "num_labels": num_labels,
            "log_prob": tf.reduce_sum(tf.reduce_max(log_probs, axis=-1), axis=1),
            "log_probs": log_probs,
        }

    outputs = {
        "text": "the most likely label of each frame, without repeats and blanks",
        "num_labels": "number of labels in the text",
        "log_prob": "log-probability of the greedy alignment, in nats",
        "log_probs": f"log-probabilities of the blank and the labels in frames / {model.subsampling}, rounded up",
    }
    return Signature(transcribe, [recordings, lengths], outputs, f"transcripts of {name}", notes)
