"""SavedModels of models of images and audio, as sequences of bytes: likelihoods and samples."""

import os
import pathlib

import tensorflow as tf

from tf_sparse_attention.data import AudioCodec, ImageCodec
from tf_sparse_attention.export.input_checks import (
    check_codec,
    check_language_model,
    check_length,
    require,
    valid_lengths,
)
from tf_sparse_attention.export.sampling_loop import MAX_ROWS, Prompts, SamplingLoop
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import bits, row_lengths, sum_nats
from tf_sparse_attention.models import LanguageModel


def export_images(
    model: LanguageModel,
    path: str | os.PathLike,
    codec: ImageCodec,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of an image model with the signatures `score` and `generate`.

    - `score`: images, uint8 (B, H, W, C) -> bits_per_dim and nats, float32 (B,), the negative log-likelihood of
      an image. Scores are not likelihoods if the model is not causal, as with `selection="top_k"`.
    - `generate`: images, uint8 (B, H, W, C), and the scalars num_rows (number of top rows to keep; 0: sample whole
      images), temperature (0: always the most likely byte), top_p and seed -> images, uint8 (B, H, W, C), and log_prob,
      float32 (B,), of the sampled bytes. In block order, only the bytes before the first byte of any lower row are
      kept. With a fixed seed, image i does not depend on the batch and is the same as in `LanguageModel.generate`.

    A model without a KV cache recomputes the whole image for each byte.

    Args:
        model: causal `LanguageModel` with the codec's ids, on the TensorFlow backend.
        path, jit_compile, weight_dtype: see `export_language_model`.
        codec: the `ImageCodec` of the images.
        batch_size: maximum number of images that `score` computes at once. Default: 8.

    Raises:
        ValueError: On another backend, or if the model, codec or path is not supported.

    Example:
        >>> export_images(model, "painter", ImageCodec(height=32, width=32))
        >>> generate = tf.saved_model.load("painter").signatures["generate"]
        >>> settings = {"num_rows": 16, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> generate(images=images, **{name: tf.constant(x) for name, x in settings.items()})["images"]
    """
    check_language_model(model)
    check_codec("codec", codec, ImageCodec, model.backbone.vocabulary_size)
    check_length("codec.length", codec.length, model.backbone.max_length)
    order = "in raster order" if codec.block_shape is None else f"in blocks of {codec.block_shape} pixels"
    description = (
        f"The model has {model.backbone.num_layers} blocks. Images have {codec.height} rows, {codec.width} columns and "
        f"{codec.channels} channels of one byte, {order}."
    )
    signatures = {
        "score": _score_images(model, codec, batch_size),
        "generate": _generate_images(model, codec, jit_compile),
    }
    return write_saved_model(path, model, signatures, "An image model", description, weight_dtype=weight_dtype)


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

    A model without a KV cache recomputes the whole row for each sample.

    Args:
        model: causal `LanguageModel` with the codec's ids, on the TensorFlow backend.
        path, jit_compile, weight_dtype: see `export_language_model`.
        codec: the `AudioCodec` of the samples.
        sequence_length: maximum number of samples in a window of `score`. Use the training length. Default: 8192.
        batch_size: maximum number of windows that `score` computes at once. Default: 8.

    Raises:
        ValueError: On another backend, or if the model, codec, length or path is not supported.

    Example:
        >>> export_audio(model, "player", AudioCodec(sample_rate=8000))
        >>> generate = tf.saved_model.load("player").signatures["generate"]
        >>> settings = {"max_length": 4000, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> recording = {"samples": tf.zeros((1, 800), tf.int16), "num_samples": tf.constant([800])}
        >>> generate(**recording, **{name: tf.constant(x) for name, x in settings.items()})["samples"]
    """
    check_language_model(model)
    check_codec("codec", codec, AudioCodec, model.backbone.vocabulary_size)
    check_length("sequence_length", sequence_length, model.backbone.max_length)
    description = (
        f"{model.backbone.num_layers} blocks. Recordings have one channel and {codec.sample_rate} samples per second, "
        "coded as one mu-law byte per sample."
    )
    signatures = {
        "score": _score_audio(model, codec, sequence_length, batch_size),
        "generate": _generate_audio(model, codec, jit_compile),
    }
    return write_saved_model(path, model, signatures, "An audio model", description, weight_dtype=weight_dtype)


def _images(codec, meaning):
    example = f"tf.fill({(2, *codec.shape)}, tf.constant(128, tf.uint8))"
    return Input(tf.TensorSpec((None, *codec.shape), tf.uint8, "images"), meaning, example)


def _score_images(model, codec, batch_size):
    def score(images):
        ids = tf.RaggedTensor.from_tensor(codec.encode(images))
        return _likelihood(model, codec, ids, codec.length, batch_size, "bits_per_dim")

    outputs = {
        "bits_per_dim": f"nats / ln 2 / {codec.length}, the bytes of an image",
        "nats": "negative log-probability of the image",
    }
    inputs = [_images(codec, "any number of images")]
    return Signature(score, inputs, outputs, "log-likelihood of images", _causality_note(model))


def _generate_images(model, codec, jit_compile):
    loop = SamplingLoop(model, codec, jit_compile, max_length=codec.length)
    ids_above = [codec.num_ids_above(row) for row in range(codec.height + 1)]

    def read(images, num_rows):
        is_valid = (num_rows >= 0) & (num_rows <= codec.height)
        given = tf.gather(ids_above, tf.clip_by_value(num_rows, 0, codec.height))
        return Prompts(
            codec.encode(images),
            tf.fill([tf.shape(images)[0]], given),
            tf.constant(codec.length),
            [(is_valid, f"`num_rows` must be in [0, {codec.height}], the rows of an image.", num_rows)],
        )

    kept = f"number of top rows to keep, from 0 (sample whole images) to {codec.height}"
    inputs = [
        _images(codec, f"images to complete, at most {MAX_ROWS}; with num_rows = 0 their content is ignored"),
        Input.scalar("num_rows", tf.int32, kept, codec.height // 2),
    ]
    outputs = {"images": "the images", "log_prob": "log-probability of the sampled bytes, in nats"}

    def write(ids, lengths, log_prob):
        return {"images": codec.decode(tf.ensure_shape(ids, (None, codec.length))), "log_prob": log_prob}

    return loop.signature("images, sampled or completed", inputs, read, outputs, write, rows="images")


def _recordings(rows, count, num_samples):
    """Return the inputs `samples` and `num_samples`. The example in the README.md is silence."""
    samples = f"{rows}, padded on the right with any values"
    counts = f"number of samples per row, from {count} to T"
    return [
        Input(tf.TensorSpec((None, None), tf.int16, "samples"), samples, f"tf.zeros((1, {num_samples}), tf.int16)"),
        Input(tf.TensorSpec((None,), tf.int32, "num_samples"), counts, f"tf.constant([{num_samples}])"),
    ]


def _score_audio(model, codec, sequence_length, batch_size):
    def score(samples, num_samples):
        num_samples = require(num_samples, *valid_lengths("num_samples", num_samples, samples, 0))
        ids = tf.RaggedTensor.from_tensor(codec.encode(samples), num_samples, row_splits_dtype=tf.int32)
        return _likelihood(model, codec, ids, sequence_length, batch_size, "bits_per_byte")

    outputs = {
        "bits_per_byte": "nats / ln 2 / num_samples; 0 without samples",
        "nats": "negative log-probability of the recording's mu-law bytes",
    }
    notes = (
        f"Longer recordings are scored in consecutive windows of {sequence_length} samples. Each window starts\n"
        f"without context. {_causality_note(model)}"
    )
    inputs = _recordings("recordings", 0, codec.sample_rate)
    return Signature(score, inputs, outputs, "log-likelihood of recordings", notes.rstrip())


def _generate_audio(model, codec, jit_compile):
    loop = SamplingLoop(model, codec, jit_compile)

    def read(samples, num_samples, max_length):
        conditions = valid_lengths("num_samples", num_samples, samples, 0)
        return Prompts(codec.encode(samples), num_samples, max_length, conditions)

    def write(ids, lengths, log_prob):
        return {"samples": codec.decode(ids), "log_prob": log_prob}

    example = min(loop.max_length, codec.sample_rate // 2)
    length = f"samples per row, including the given samples, at most {loop.max_length}"
    inputs = [
        *_recordings(f"at most {MAX_ROWS} recordings to continue", "0 (sample from the start)", example // 2),
        Input.scalar("max_length", tf.int32, length, example),
    ]
    outputs = {
        "samples": "given samples, rounded to mu-law bytes, with their continuation; T = max_length",
        "log_prob": "log-probability of the sampled bytes, in nats",
    }
    return loop.signature("continuations of recordings", inputs, read, outputs, write, rows="samples")


def _likelihood(model, codec, ids, sequence_length, batch_size, name):
    """Return nats and bits per id of ragged ids, the outputs of `score`."""
    nats = sum_nats(model, codec.start_id, ids, sequence_length, batch_size)
    return {name: bits(nats, row_lengths(ids)), "nats": tf.cast(nats, tf.float32)}


def _causality_note(model):
    return "" if model.backbone.causal_selection else "The model is not causal: the scores are not likelihoods."
