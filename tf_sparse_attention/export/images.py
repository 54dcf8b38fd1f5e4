"""SavedModels of images: how likely they are, and what a model draws or completes."""

import math
import os
import pathlib

import tensorflow as tf

from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.export.byte_functions import SETTINGS, check_byte_model, draw_rows, scalars
from tf_sparse_attention.export.byte_readmes import make_image_readme
from tf_sparse_attention.export.language_model import checked_path, write_module
from tf_sparse_attention.export.sampling_loop import checks_of, decoding_loop, setting_assertions
from tf_sparse_attention.export.scoring import window_nats
from tf_sparse_attention.export.token_rows import sum_over_windows
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.models import LanguageModel


def export_images(
    model: LanguageModel,
    path: str | os.PathLike,
    codec: ImageCodec,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Writes a SavedModel of a model of images with the signatures `score` and `generate`: images in, images out.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example.

    - `score`: images, uint8 (B, H, W, C) -> bits_per_dim and nats, float32 (B,), of all bytes of each, given those
      before. Of a model that looks ahead, such as one with `selection="top_k"`, they are no likelihood.
    - `generate`: images, uint8 (B, H, W, C), num_rows, how many of their top rows are given (0: whole images are
      drawn), temperature (0: the most likely byte each time), top_p and seed, scalars -> drawn, uint8 (B, H, W, C), and
      log_prob, float32 (B,), of the bytes that were drawn. Block by block, what is given are the bytes before the first
      one of the row after. Row i of a seed draws the same in every batch, and the same as `LanguageModel.generate`.

    The loop of `generate` is compiled by XLA for each of a few sizes on first use. A model without a cache computes the
    whole image for each byte.

    Args:
        model: `LanguageModel` of the ids of a codec, on the TensorFlow backend.
        path: folder to write, see `export_saved_model`.
        codec: the `ImageCodec` of its images.
        batch_size: maximal number of images that `score` computes at once. Default: 8.
        jit_compile, weight_dtype: see `export_saved_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, codec or path is not suitable.

    Example:
        >>> export_images(model, "painter", ImageCodec(height=32, width=32))
        >>> generate = tf.saved_model.load("painter").signatures["generate"]
        >>> settings = {"num_rows": 16, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> generate(images=images, **{name: tf.constant(x) for name, x in settings.items()})["drawn"]
    """
    check_byte_model(model, codec, ImageCodec, batch_size, jit_compile, weight_dtype)
    _check_positions(codec, model)
    folder = checked_path(path)
    served = tf.Module(name="image_model")
    served.weights = weights = Weights(model, weight_dtype)
    served.score = _score_function(model, codec, weights, batch_size)
    served.generate = _generate_function(model, codec, weights, jit_compile)
    write_module(served, folder, ("score", "generate"), make_image_readme(model, codec, weights, folder.name))
    return folder


def _check_positions(codec, model):
    positions = model.backbone.max_length
    if positions is not None and positions < codec.length:
        raise ValueError(
            f"`codec` must be of images that the model has positions for. Received: images of {codec.length} bytes, a "
            f"model of {positions} positions."
        )


def _images(codec):
    return tf.TensorSpec((None, *codec.shape), tf.uint8, "images")


def _score_function(model, codec, weights, batch_size):
    nats_of = window_nats(model, codec.start_id)

    def score(images):
        ids = tf.RaggedTensor.from_tensor(codec.encode(images))
        with weights.scope():
            nats = sum_over_windows(ids, tf.shape(images)[0], codec.length, batch_size, nats_of)
        bits_per_dim = nats / (math.log(2) * codec.length)
        return {"bits_per_dim": tf.cast(bits_per_dim, tf.float32), "nats": tf.cast(nats, tf.float32)}

    return tf.function(score, input_signature=[_images(codec)], autograph=False)


def _generate_function(model, codec, weights, jit_compile):
    loop = decoding_loop(model, weights, jit_compile, codec.vocabulary_size, (), codec.start_id)
    ids_above = [codec.num_ids_above(row) for row in range(codec.height + 1)]

    def generate(images, num_rows, temperature, top_p, seed):
        count = tf.shape(images)[0]
        inside = (num_rows >= 0) & (num_rows <= codec.height)
        of_rows = ((inside, f"`num_rows` must be in [0, {codec.height}], the rows of an image.", num_rows),)
        assertions = checks_of(of_rows) + setting_assertions("images", count, temperature, top_p)
        given = tf.fill([count], tf.gather(ids_above, tf.clip_by_value(num_rows, 0, codec.height)))
        settings = temperature, top_p, seed
        ids, log_prob = draw_rows(loop, codec.encode(images), given, codec.length, codec.length, settings, assertions)
        return {"drawn": codec.decode(ids), "log_prob": log_prob}

    inputs = scalars({"num_rows": tf.int32, **SETTINGS})
    return tf.function(generate, input_signature=[_images(codec), *inputs], autograph=False)
