"""SavedModels of speech: features or sound in, transcripts out."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import LogMel
from tf_sparse_attention.export.input_checks import check_kind
from tf_sparse_attention.export.language_model import checked_path, write_module
from tf_sparse_attention.export.sampling_loop import checks_of, length_assertions
from tf_sparse_attention.export.speech_readme import make_speech_readme
from tf_sparse_attention.export.weights import Weights
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
    """Writes a SavedModel of a recognizer with the signature `transcribe`, and of sound `transcribe_sound`.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example.

    - `transcribe`: features, float32 (B, T, F), padded on the right, and num_frames, int32 (B,), of each -> text,
      string (B,), the likeliest label of each frame without repeats and blanks; num_labels, int32 (B,), in it;
      log_prob, float32 (B,), of that alignment, in nats; log_probs, float32 (B, T', V + 1), of the blank and the
      labels in each frame that is left, for a search of your own.
    - `transcribe_sound`: samples, float32 (B, N) in [-1, 1], padded on the right, and num_samples, int32 (B,) -> the
      same, of the features that `log_mel` makes of them.

    All rows are computed at once.

    Args:
        model: `SpeechRecognizer`, on the TensorFlow backend.
        path: folder to write, see `export_saved_model`.
        labels: the V labels as text, that of id 1 first.
        separator: between two labels of a transcript. Default: "", as for characters; " " is usual for phonemes.
        log_mel: the `LogMel` by which the model's features are made of sound. None (default): no `transcribe_sound`.
        weight_dtype: see `export_saved_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, labels, `log_mel` or path are not suitable.

    Example:
        >>> export_speech(model, "recognizer", labels=["a", "b", " "], log_mel=LogMel(num_bands=40))
        >>> served = tf.saved_model.load("recognizer").signatures
        >>> served["transcribe_sound"](samples=samples, num_samples=tf.constant([16_000]))["text"]
    """
    check_kind(model, "A SavedModel", SpeechRecognizer)
    _check_labels(model, labels, separator)
    _check_log_mel(model, log_mel)
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))
    folder = checked_path(path)
    served = tf.Module(name="speech_recognizer")
    served.weights = weights = Weights(model, weight_dtype)
    transcriber = _Transcriber(model, list(labels), separator, weights)
    served.transcribe = _features_function(transcriber)
    names = ["transcribe"]
    if log_mel is not None:
        served.transcribe_sound = _sound_function(transcriber, log_mel)
        names.append("transcribe_sound")
    write_module(served, folder, names, make_speech_readme(model, weights, labels, separator, log_mel, folder.name))
    return folder


def _check_labels(model, labels, separator):
    is_text = not isinstance(labels, str) and all(isinstance(label, str) for label in labels)
    if not is_text or len(labels) != model.vocabulary_size:
        raise ValueError(f"`labels` must be {model.vocabulary_size} texts, those of the model. Received: {labels!r}.")
    if not isinstance(separator, str):
        raise ValueError(f"`separator` must be a text. Received: separator={separator!r}.")


def _check_log_mel(model, log_mel):
    if log_mel is not None and (not isinstance(log_mel, LogMel) or log_mel.num_bands != model.num_features):
        found = log_mel.num_bands if isinstance(log_mel, LogMel) else repr(log_mel)
        raise ValueError(
            f"`log_mel` must be a `LogMel` of {model.num_features} bands, the features of the model. Received: {found}."
        )


class _Transcriber:
    """From features to the outputs of both signatures."""

    def __init__(self, model: SpeechRecognizer, labels: list[str], separator: str, weights: Weights) -> None:
        self.model, self.labels, self.separator, self.weights = model, labels, separator, weights

    def __call__(self, features: tf.Tensor, num_frames: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the outputs for features (B, T, F), of which the first `num_frames` (B,) are real."""
        model = self.model
        mask = tf.range(tf.shape(features)[1]) < num_frames[:, None]
        inputs: dict[str, Any] = {"features": tf.where(mask[..., None], features, 0), "padding_mask": mask}
        with self.weights.scope():
            log_probs = model(inputs, training=False)
        ids = ctc_greedy(log_probs)
        num_labels = tf.reduce_sum(tf.cast(ids > 0, tf.int32), axis=1)
        words = tf.RaggedTensor.from_tensor(tf.gather(["", *self.labels], ids), num_labels)
        return {
            "text": tf.strings.reduce_join(words, axis=1, separator=self.separator),
            "num_labels": num_labels,
            "log_prob": tf.reduce_sum(tf.reduce_max(log_probs, axis=-1), axis=1),
            "log_probs": log_probs,
        }


def _features_function(transcriber):
    model = transcriber.model
    specs = [
        tf.TensorSpec((None, None, model.num_features), tf.float32, "features"),
        tf.TensorSpec((None,), tf.int32, "num_frames"),
    ]
    positions = model.encoder.max_length
    most = None if positions is None else positions * model.subsampling

    def transcribe(features, num_frames):
        assertions = length_assertions("num_frames", num_frames, features, 1)
        if most is not None:
            length = tf.shape(features)[1]
            assertions += checks_of(((length <= most, f"`features` must have at most {most} frames.", length),))
        with tf.control_dependencies(assertions):
            num_frames = tf.identity(num_frames)
        return transcriber(features, num_frames)

    return tf.function(transcribe, input_signature=specs, autograph=False)


def _sound_function(transcriber, log_mel):
    specs = [tf.TensorSpec((None, None), tf.float32, "samples"), tf.TensorSpec((None,), tf.int32, "num_samples")]

    def transcribe_sound(samples, num_samples):
        with tf.control_dependencies(length_assertions("num_samples", num_samples, samples, 1)):
            num_samples = tf.identity(num_samples)
        return transcriber(log_mel(samples, num_samples), log_mel.num_frames(num_samples))

    return tf.function(transcribe_sound, input_signature=specs, autograph=False)
