"""SavedModels of audio models that score recordings in bits per byte and continue them."""

import os
import pathlib

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import AudioCodec
from tf_sparse_attention.export.input_checks import (
    MAX_ROWS,
    assert_max_length,
    assert_row_lengths,
    assert_settings,
    check_codec,
    check_length,
)
from tf_sparse_attention.export.sampling_loop import COMPILATION_NOTE, SamplingLoop, setting_inputs
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import bits, sum_over_windows, window_nats
from tf_sparse_attention.models import LanguageModel


def export_audio(
    model: LanguageModel,
    path: str | os.PathLike,
    codec: AudioCodec,
    sequence_length: int = 8192,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of an audio model with the signatures `score` and `generate`.

    The SavedModel runs without this library and contains a README.md with an example, see `export_language_model`.
    Recordings are two inputs: samples, int16 (B, T), at the codec's sample rate and padded on the right, and
    num_samples, int32 (B,).

    - `score`: recordings -> bits_per_byte and nats, float32 (B,), the negative log-likelihood of the mu-law bytes.
      Recordings of more than `sequence_length` samples are split into consecutive windows, each without context. The
      scores of an empty recording are 0. Scores are not likelihoods if the model is not causal, as with
      `selection="top_k"`.
    - `generate`: recordings to continue (empty: generate from the start), and the scalars max_length (samples per row,
      including the given samples), temperature (0: always the most likely byte), top_p and seed -> samples, int16
      (B, max_length), and log_prob, float32 (B,), of the sampled bytes. Given samples are rounded to mu-law bytes. With
      a fixed seed, row i does not depend on the batch and is the same as in `LanguageModel.generate`.

    `generate` pads its inputs to one of a few sizes, and XLA compiles each size on first use. A model without a KV
    cache recomputes the whole row for each sample.

    Args:
        model: causal `LanguageModel` with the codec's ids, on the TensorFlow backend.
        path: folder to write, see `write_saved_model`.
        codec: the `AudioCodec` of the samples.
        sequence_length: maximum number of samples in a window of `score`. Use the training length. Default: 8192.
        batch_size: maximum number of windows that `score` computes at once. Default: 8.
        jit_compile, weight_dtype: see `export_language_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, codec, length or path is not supported.

    Example:
        >>> export_audio(model, "player", AudioCodec(sample_rate=8000))
        >>> generate = tf.saved_model.load("player").signatures["generate"]
        >>> settings = {"max_length": 4000, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> recording = {"samples": tf.zeros((1, 800), tf.int16), "num_samples": tf.constant([800])}
        >>> generate(**recording, **{name: tf.constant(x) for name, x in settings.items()})["samples"]
    """
    check_codec(codec, AudioCodec, model)
    check_length("sequence_length", sequence_length, model.backbone.max_length)
    checks.check_count("batch_size", batch_size)
    checks.check_switch("jit_compile", jit_compile)
    return write_saved_model(
        path,
        model,
        {
            "score": _score(model, codec, sequence_length, batch_size),
            "generate": _generate(model, codec, jit_compile),
        },
        title="An audio model",
        description=f"{model.backbone.num_layers} blocks. Recordings have one channel and {codec.sample_rate} samples "
        "per second, coded as one mu-law byte per sample.",
        weight_dtype=weight_dtype,
    )


def _recordings(rows, count, num_samples):
    """Return the inputs `samples` and `num_samples`. The example in the README.md is silence."""
    samples = f"{rows}, padded on the right with any values"
    counts = f"number of samples per row, from {count} to T"
    return [
        Input(tf.TensorSpec((None, None), tf.int16, "samples"), samples, f"tf.zeros((1, {num_samples}), tf.int16)"),
        Input(tf.TensorSpec((None,), tf.int32, "num_samples"), counts, f"tf.constant([{num_samples}])"),
    ]


def _score(model, codec, sequence_length, batch_size):
    compute = window_nats(model, codec.start_id)

    def score(samples, num_samples):
        with tf.control_dependencies(assert_row_lengths("num_samples", num_samples, samples, 0)):
            ids = tf.RaggedTensor.from_tensor(codec.encode(samples), num_samples, row_splits_dtype=tf.int32)
        nats = sum_over_windows(ids, sequence_length, batch_size, compute)
        return {"bits_per_byte": bits(nats, num_samples), "nats": tf.cast(nats, tf.float32)}

    outputs = {
        "bits_per_byte": "nats / ln 2 / num_samples; 0 without samples",
        "nats": "negative log-probability of the recording's mu-law bytes",
    }
    notes = (
        f"Longer recordings are scored in consecutive windows of {sequence_length} samples. Each window starts\n"
        "without context."
    )
    if not model.backbone.causal_selection:
        notes += " The model is not causal: the scores are not likelihoods."
    inputs = _recordings("recordings", 0, codec.sample_rate)
    return Signature(score, inputs, outputs, "log-likelihood of recordings", notes)


def _generate(model, codec, jit_compile):
    loop = SamplingLoop(model, codec.vocabulary_size, (), codec.start_id, jit_compile)

    def generate(samples, num_samples, max_length, temperature, top_p, seed):
        assertions = assert_row_lengths("num_samples", num_samples, samples, 0)
        assertions += assert_max_length(max_length, num_samples, loop.max_length)
        assertions += assert_settings("samples", tf.size(num_samples), temperature, top_p)
        settings = temperature, top_p, seed
        ids, _, log_prob = loop(codec.encode(samples), num_samples, max_length, settings, assertions)
        return {"samples": codec.decode(ids[:, :max_length]), "log_prob": log_prob}

    example = min(loop.max_length, codec.sample_rate // 2)
    inputs = [
        *_recordings(f"at most {MAX_ROWS} recordings to continue", "0 (sample from the start)", example // 2),
        Input.scalar(
            "max_length", tf.int32, f"samples per row, including the given samples, at most {loop.max_length}", example
        ),
        *setting_inputs("samples", temperature=1.0, top_p=1.0),
    ]
    outputs = {
        "samples": "given samples, rounded to mu-law bytes, with their continuation; T = max_length",
        "log_prob": "log-probability of the sampled bytes, in nats",
    }
    return Signature(generate, inputs, outputs, "continuations of recordings", COMPILATION_NOTE)
