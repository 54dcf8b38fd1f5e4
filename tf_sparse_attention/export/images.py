"""SavedModels of image models that score images in bits per dimension, sample images and complete them."""

import os
import pathlib

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import ImageCodec
from tf_sparse_attention.export.input_checks import MAX_ROWS, assert_all, assert_settings, check_codec
from tf_sparse_attention.export.sampling_loop import COMPILATION_NOTE, SamplingLoop, setting_inputs
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import bits, sum_over_windows, window_nats
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

    The SavedModel runs without this library and contains a README.md with an example, see `export_language_model`.

    - `score`: images, uint8 (B, H, W, C) -> bits_per_dim and nats, float32 (B,), the negative log-likelihood of
      an image. Scores are not likelihoods if the model is not causal, as with `selection="top_k"`.
    - `generate`: images, uint8 (B, H, W, C), and the scalars num_rows (number of top rows to keep; 0: sample whole
      images), temperature (0: always the most likely byte), top_p and seed -> images, uint8 (B, H, W, C), and log_prob,
      float32 (B,), of the sampled bytes. In block order, only the bytes before the first byte of any lower row are
      kept. With a fixed seed, image i does not depend on the batch and is the same as in `LanguageModel.generate`.

    `generate` pads its inputs to one of a few sizes, and XLA compiles each size on first use. A model without a KV
    cache recomputes the whole image for each byte.

    Args:
        model: causal `LanguageModel` with the codec's ids, on the TensorFlow backend.
        path: folder to write, see `write_saved_model`.
        codec: the `ImageCodec` of the images.
        batch_size: maximum number of images that `score` computes at once. Default: 8.
        jit_compile, weight_dtype: see `export_language_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, codec or path is not supported.

    Example:
        >>> export_images(model, "painter", ImageCodec(height=32, width=32))
        >>> generate = tf.saved_model.load("painter").signatures["generate"]
        >>> settings = {"num_rows": 16, "temperature": 1.0, "top_p": 1.0, "seed": 0}
        >>> generate(images=images, **{name: tf.constant(x) for name, x in settings.items()})["images"]
    """
    check_codec(codec, ImageCodec, model)
    num_positions = model.backbone.max_length
    if num_positions is not None and num_positions < codec.length:
        raise ValueError(
            f"`codec` must have images of at most {num_positions} bytes, the number of positions of the model. "
            f"Received: images of {codec.length} bytes."
        )
    checks.check_count("batch_size", batch_size)
    checks.check_switch("jit_compile", jit_compile)
    order = "in raster order" if codec.block_shape is None else f"in blocks of {codec.block_shape} pixels"
    return write_saved_model(
        path,
        model,
        {"score": _score(model, codec, batch_size), "generate": _generate(model, codec, jit_compile)},
        title="An image model",
        description=f"The model has {model.backbone.num_layers} blocks. Images have {codec.height} rows, "
        f"{codec.width} columns and {codec.channels} channels of one byte, {order}.",
        weight_dtype=weight_dtype,
    )


def _images(codec, meaning):
    example = f"tf.fill({(2, *codec.shape)}, tf.constant(128, tf.uint8))"
    return Input(tf.TensorSpec((None, *codec.shape), tf.uint8, "images"), meaning, example)


def _score(model, codec, batch_size):
    compute = window_nats(model, codec.start_id)

    def score(images):
        nats = sum_over_windows(tf.RaggedTensor.from_tensor(codec.encode(images)), codec.length, batch_size, compute)
        return {"bits_per_dim": bits(nats, codec.length), "nats": tf.cast(nats, tf.float32)}

    outputs = {
        "bits_per_dim": f"nats / ln 2 / {codec.length}, the bytes of an image",
        "nats": "negative log-probability of the image",
    }
    notes = "" if model.backbone.causal_selection else "The model is not causal: the scores are not likelihoods."
    return Signature(score, [_images(codec, "any number of images")], outputs, "log-likelihood of images", notes)


def _generate(model, codec, jit_compile):
    loop = SamplingLoop(model, codec.vocabulary_size, (), codec.start_id, jit_compile, codec.length)
    ids_above = [codec.num_ids_above(row) for row in range(codec.height + 1)]

    def generate(images, num_rows, temperature, top_p, seed):
        count = tf.shape(images)[0]
        is_row = (num_rows >= 0) & (num_rows <= codec.height)
        message = f"`num_rows` must be in [0, {codec.height}], the rows of an image."
        assertions = assert_all([(is_row, message, num_rows)]) + assert_settings("images", count, temperature, top_p)
        given = tf.fill([count], tf.gather(ids_above, tf.clip_by_value(num_rows, 0, codec.height)))
        settings = temperature, top_p, seed
        ids, _, log_prob = loop(codec.encode(images), given, codec.length, settings, assertions)
        return {"images": codec.decode(ids), "log_prob": log_prob}

    kept = f"number of top rows to keep, from 0 (sample whole images) to {codec.height}"
    inputs = [
        _images(codec, f"images to complete, at most {MAX_ROWS}; with num_rows = 0 their content is ignored"),
        Input.scalar("num_rows", tf.int32, kept, codec.height // 2),
        *setting_inputs("images", temperature=1.0, top_p=1.0),
    ]
    outputs = {"images": "the images", "log_prob": "log-probability of the sampled bytes, in nats"}
    return Signature(generate, inputs, outputs, "images, sampled or completed", COMPILATION_NOTE)
