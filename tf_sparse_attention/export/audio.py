"""SavedModels of sound: how likely it is, and what a model draws or how it goes on."""

import math
import os
import pathlib

import tensorflow as tf

from tf_sparse_attention.data import AudioCodec
from tf_sparse_attention.export.byte_functions import SETTINGS, check_byte_model, draw_rows, scalars
from tf_sparse_attention.export.byte_readmes import make_audio_readme
from tf_sparse_attention.export.input_checks import check_length
from tf_sparse_attention.export.language_model import checked_path, write_module
from tf_sparse_attention.export.sampling_loop import assertions, bucket, decoding_loop, length_assertions, max_tokens_of
from tf_sparse_attention.export.scoring import window_nats
from tf_sparse_attention.export.token_rows import sum_over_windows
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel

SOUND = [tf.TensorSpec((None, None), tf.int16, "samples"), tf.TensorSpec((None,), tf.int32, "num_samples")]


def export_audio(
    model: LanguageModel,
    path: str | os.PathLike,
    codec: AudioCodec,
    sequence_length: int = 8192,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel of a model of sound with the signatures `score` and `generate`: sound in, sound out.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example. Sound is
    samples, int16 (B, T), of the codec's rate, padded on the right, and num_samples, int32 (B,), of each row.

    - `score`: sound -> bits_per_byte and nats, float32 (B,), of the bytes of mu-law that the samples are coded as, each
      given those before. More than `sequence_length` samples are scored in consecutive windows, each sample once; a
      window starts without context. No samples have 0 nats and 0 bits per byte. Of a model that looks ahead, such as
      one with `selection="top_k"`, they are no likelihood.
    - `generate`: sound, which goes on (no samples: sound is drawn from its beginning), max_length (samples of a row,
      those given included), temperature (0: the most likely byte each time), top_p and seed, scalars -> drawn, int16
      (B, max_length), and log_prob, float32 (B,), of the samples that were drawn. Those that are given are as near as
      a byte of mu-law comes. Row i of a seed draws the same in every batch, and the same as `LanguageModel.generate`.

    The loop of `generate` is compiled by XLA for each of a few sizes on first use. A model without a cache computes the
    whole row for each sample.

    Args:
        model: `LanguageModel` of the ids of a codec, on the TensorFlow backend.
        path: folder to write, see `export_saved_model`.
        codec: the `AudioCodec` of its samples.
        sequence_length: maximal number of samples in a window of `score`, best the length of training. Default: 8192.
        batch_size: maximal number of windows that `score` computes at once. Default: 8.
        jit_compile, weight_dtype: see `export_saved_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, codec, length or path is not suitable.

    Example:
        >>> export_audio(model, "player", AudioCodec(sample_rate=8000))
        >>> generate = tf.saved_model.load("player").signatures["generate"]
        >>> settings = {"max_length": 4000, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> sound = {"samples": tf.zeros((1, 800), tf.int16), "num_samples": tf.constant([800])}
        >>> generate(**sound, **{name: tf.constant(x) for name, x in settings.items()})["drawn"]
    """
    check_byte_model(model, codec, AudioCodec, batch_size, jit_compile, weight_dtype)
    check_length("sequence_length", sequence_length, model.backbone.max_length)
    folder = checked_path(path)
    served = tf.Module(name="audio_model")
    served.weights = weights = Weights(model, weight_dtype)
    served.score = _score_function(model, codec, weights, sequence_length, batch_size)
    served.generate = _generate_function(model, codec, weights, jit_compile)
    readme = make_audio_readme(model, codec, weights, sequence_length, folder.name)
    write_module(served, folder, ("score", "generate"), readme)
    return folder


def _score_function(model, codec, weights, sequence_length, batch_size):
    nats_of = window_nats(model, codec.start_id)

    def score(samples, num_samples):
        with tf.control_dependencies(length_assertions("num_samples", num_samples, samples, 0)):
            ids = tf.RaggedTensor.from_tensor(codec.encode(samples), num_samples, row_splits_dtype=tf.int32)
        with weights.scope():
            nats = sum_over_windows(ids, tf.size(num_samples), sequence_length, batch_size, nats_of)
        bits_per_byte = tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_samples, tf.float64))
        return {"bits_per_byte": tf.cast(bits_per_byte, tf.float32), "nats": tf.cast(nats, tf.float32)}

    return tf.function(score, input_signature=SOUND, autograph=False)


def _generate_function(model, codec, weights, jit_compile):
    loop = decoding_loop(model, weights, jit_compile, codec.vocabulary_size, (), codec.start_id)
    most = max_tokens_of(model)

    def generate(samples, num_samples, max_length, temperature, top_p, seed):
        right = length_assertions("num_samples", num_samples, samples, 0)
        right += assertions("samples", num_samples, max_length, temperature, top_p, most)
        with tf.control_dependencies(right):
            width = bucket(max_length, 64, most)
        given = codec.encode(samples)[:, :width]
        ids = tf.pad(given, [[0, 0], [0, width - tf.shape(given)[1]]])
        ids, log_prob = draw_rows(loop, ids, num_samples, max_length, most, (temperature, top_p, seed), right)
        return {"drawn": codec.decode(ids[:, :max_length]), "log_prob": log_prob}

    inputs = scalars({"max_length": tf.int32, **SETTINGS})
    return tf.function(generate, input_signature=[*SOUND, *inputs], autograph=False)
