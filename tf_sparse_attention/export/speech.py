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
    signatures = {"transcribe": _transcribe_features(model, transcribe)}
    if log_mel is not None:
        signatures["transcribe_sound"] = _transcribe_sound(model, transcribe, log_mel)
    description = (
        f"{model.encoder.num_layers} blocks. Id 0 is the blank. The labels from id 1 on, joined by "
        f"{json.dumps(separator)} in transcripts:\n`{json.dumps(list(labels), ensure_ascii=False)}`"
    )
    return write_saved_model(path, model, signatures, "A speech recognizer", description, weight_dtype=weight_dtype)


def _transcribe(model, labels, separator, name, features, num_frames):
    """Return the outputs of both signatures for features (B, T, F) and numbers of frames (B,) of the input `name`."""
    length = tf.shape(features)[1]
    if (limit := _max_frames(model)) is not None:
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


def _outputs(model):
    return {
        "text": "the most likely label of each frame, without repeats and blanks",
        "num_labels": "number of labels in the text",
        "log_prob": "log-probability of the greedy alignment, in nats",
        "log_probs": f"log-probabilities of the blank and the labels in T / {model.subsampling} frames, rounded up",
    }


def _max_frames(model):
    """Return the largest number of frames of a recording, or None."""
    return None if model.encoder.max_length is None else model.encoder.max_length * model.subsampling


def _inputs(name, spec, meaning, example, lengths, longest):
    """Return the inputs of rows that are padded on the right, and of their lengths."""
    return [
        Input(tf.TensorSpec(spec, tf.float32, name), f"{meaning}, padded on the right", example),
        Input(tf.TensorSpec((None,), tf.int32, lengths), "length of each row, from 1 to T", f"tf.constant({longest})"),
    ]


def _transcribe_features(model, transcribe_frames):
    def transcribe(features, num_frames):
        num_frames = require(num_frames, *valid_lengths("num_frames", num_frames, features, 1))
        return transcribe_frames("features", features, num_frames)

    length = min(100, _max_frames(model) or 100)
    example = f"tf.zeros((2, {length}, {model.num_features}))"
    shape, meaning = (None, None, model.num_features), "features of recordings, not normalized"
    inputs = _inputs("features", shape, meaning, example, "num_frames", [length, (length + 1) // 2])
    notes = "Frames after the last frame of a row are blank with probability 1."
    return Signature(transcribe, inputs, _outputs(model), "transcripts of features", notes)


def _transcribe_sound(model, transcribe_frames, log_mel):
    def transcribe_sound(samples, num_samples):
        num_samples = require(num_samples, *valid_lengths("num_samples", num_samples, samples, 1))
        return transcribe_frames("samples", log_mel(samples, num_samples), log_mel.num_frames(num_samples))

    config = log_mel.get_config()
    meaning, rate = f"recordings in [-1, 1], {config['sample_rate']} samples per second", config["sample_rate"]
    inputs = _inputs("samples", (None, None), meaning, f"tf.zeros((1, {rate}))", "num_samples", [rate])
    notes = (
        "Features are the logarithms of {num_bands} mel bands from {lowest} to {highest} Hz, in windows of {window} s "
        "every\n{hop} s, with pre-emphasis {pre_emphasis}. Recordings are not resampled."
    ).format(**config)
    return Signature(transcribe_sound, inputs, _outputs(model), "transcripts of recordings", notes)
