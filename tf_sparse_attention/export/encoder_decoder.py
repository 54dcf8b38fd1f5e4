"""SavedModels of encoder-decoders: source text in, target text out."""

import functools
import os
import pathlib

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.input_checks import check_codec, check_kind, require, same_rows
from tf_sparse_attention.export.sampling_loop import (
    MAX_TOKENS,
    MIN_LENGTH,
    Prompts,
    SamplingLoop,
    bucket,
    text_outputs,
)
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import append_end, bits, maximum, row_lengths
from tf_sparse_attention.models import SequenceToSequence
from tf_sparse_attention.models.metrics import nats_of
from tf_sparse_attention.types import Tensor


def export_sequence_to_sequence(
    model: SequenceToSequence,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer | None = None,
    append_end: bool = True,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of an encoder-decoder with the signatures `generate` and `score`: text in, text out.

    The SavedModel runs without this library and contains a README.md with an example, see `export_language_model`.

    - `generate`: text, string (B,), and the scalars max_length (maximum number of target tokens), temperature (0:
      always the most likely token), top_p and seed -> text (valid UTF-8) and text_bytes, string (B,), the target of
      each source; num_tokens, int32 (B,), and log_prob, float32 (B,), of the target. Sources and targets are padded to
      one of a few sizes (`bucket_length`), and XLA compiles each size on first use.
    - `score`: text and target, string (B,) -> nats and bits_per_byte, float32 (B,), of the target and its end id, given
      the source; num_bytes and num_tokens, int32 (B,). All rows are computed in one batch.

    Args:
        model: `SequenceToSequence`, on the TensorFlow backend, whose encoder reads token ids.
        path: folder to write, see `write_saved_model`.
        tokenizer: tokenizer of the targets, as in training.
        source_tokenizer: tokenizer of the sources. None (default): `tokenizer`.
        append_end: whether to append the end id to each source, as `pack_pairs` and the trainer do. Default: True.
        jit_compile, weight_dtype: see `export_language_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, a tokenizer or the path is not supported.

    Example:
        >>> export_sequence_to_sequence(model, "translator", ByteTokenizer())
        >>> served = tf.saved_model.load("translator").signatures["generate"]
        >>> settings = {"max_length": 100, "temperature": 0.0, "top_p": 1.0, "seed": 0}
        >>> served(text=tf.constant(["Guten Tag"]), **{name: tf.constant(x) for name, x in settings.items()})["text"]
    """
    source_tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
    check_kind(model, (SequenceToSequence,))
    check_codec("tokenizer", tokenizer, Tokenizer, model.vocabulary_size)
    check_codec("source_tokenizer", source_tokenizer, Tokenizer, model.source_vocabulary_size)
    checks.check_switch("append_end", append_end)
    tokenizers = [tokenizer, source_tokenizer]
    max_length = model.encoder.max_length or MAX_TOKENS
    sources = Input.strings("text", f"source, bytes, of at most {max_length} tokens", "A line of text.")
    read_source = functools.partial(_read_source, source_tokenizer, append_end, max_length)
    names = " and ".join(dict.fromkeys(f"`{type(each).__name__}`" for each in tokenizers))
    return write_saved_model(
        path,
        model,
        {
            "generate": _generate(model, tokenizer, sources, read_source, jit_compile),
            "score": _score(model, tokenizer, sources, read_source),
        },
        title="An encoder-decoder",
        description=f"A vocabulary of {model.vocabulary_size} ids of {names}.",
        tokenizers=tokenizers,
        weight_dtype=weight_dtype,
    )


def _read_source(tokenizer: Tokenizer, append: bool, max_length: int, text: Tensor, num_rows: Tensor) -> dict:
    """Return the encoder inputs, padded to one of a few lengths: ids, int32, and mask, bool, (num_rows, S)."""
    ids = tokenizer.tokenize(text)
    ids = append_end(ids, tokenizer) if append else ids
    lengths = row_lengths(ids)
    is_valid = tf.reduce_all((lengths > 0) & (lengths <= max_length))
    lengths = require(lengths, (is_valid, f"`text` must have 1 to {max_length} tokens per row.", lengths))
    size = bucket(maximum(lengths), MIN_LENGTH, max_length)
    rows = [[0, num_rows - tf.size(text)]]
    padded = tf.pad(ids.to_tensor(shape=tf.stack([-1, size])), [*rows, [0, 0]])
    # Padding rows attend to one token, so that no row of the mask is all False.
    mask = tf.sequence_mask(tf.pad(lengths, rows, constant_values=1), size)
    return {"encoder_token_ids": tf.cast(padded, tf.int32), "encoder_padding_mask": mask}


def _generate(model, tokenizer, sources, read_source, jit_compile):
    def encode(source):
        return model.encode(source, training=False)

    loop = SamplingLoop(model.decoder, tokenizer, jit_compile, (tokenizer.end_id,), encode=encode)

    def read(text, max_length):
        no_prompts = tf.zeros((tf.size(text), 1), tf.int32)
        return Prompts(no_prompts, no_prompts[:, 0], max_length, read_source=functools.partial(read_source, text))

    length = f"maximum number of tokens of a target, at most {loop.max_length}"
    outputs = {
        "text": "target, valid UTF-8 with U+FFFD for invalid bytes",
        "text_bytes": "target as bytes, valid UTF-8 or not",
        "num_tokens": "tokens of the target",
        "log_prob": "log-probability of the target and its end id, in nats",
    }
    return loop.signature(
        "generated targets",
        [sources, Input.scalar("max_length", tf.int32, length, 60)],
        read,
        outputs,
        functools.partial(text_outputs, tokenizer),
        rows="texts",
        temperature=0.0,
    )


def _score(model, tokenizer, sources, read_source):
    num_positions = model.decoder.backbone.max_length

    def score(text, target):
        target = require(target, same_rows(("text", "target"), text, target))
        ids = append_end(tokenizer.tokenize(target), tokenizer)
        lengths = row_lengths(ids)
        if num_positions is not None:
            message = f"`target` must have at most {num_positions} tokens with its end id."
            lengths = require(lengths, (maximum(lengths) <= num_positions, message, lengths))
        is_token = tf.sequence_mask(lengths)
        targets = tf.cast(ids.to_tensor(), tf.int32)
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        decoder_inputs = {"decoder_token_ids": tf.where(is_token, inputs, 0), "decoder_padding_mask": is_token}
        logits = model({**read_source(text, tf.size(text)), **decoder_inputs}, training=False)
        nats = tf.reduce_sum(tf.where(is_token, nats_of(targets, logits), 0), axis=1)
        num_bytes = tf.strings.length(target, unit="BYTE")
        return {"bits_per_byte": bits(nats, num_bytes), "nats": nats, "num_bytes": num_bytes, "num_tokens": lengths}

    outputs = {
        "nats": "negative log-probability of the target and its end id, given the source",
        "num_bytes": "bytes of the target",
        "num_tokens": "number of tokens of the target, including the end id",
        "bits_per_byte": "nats / ln 2 / num_bytes; 0 for an empty target",
    }
    inputs = [sources, Input.strings("target", "target, bytes", "Another one.")]
    return Signature(score, inputs, outputs, "log-likelihood of targets, given sources")
