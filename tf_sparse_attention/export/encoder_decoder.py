"""SavedModels of encoder-decoders: source text in, target text out."""

import os
import pathlib

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.input_checks import (
    assert_all,
    assert_max_length,
    assert_same_rows,
    assert_settings,
    check_kind,
    check_tokenizer,
)
from tf_sparse_attention.export.sampling_loop import (
    COMPILATION_NOTE,
    MAX_TOKENS,
    MIN_LENGTH,
    SamplingLoop,
    bucket,
    setting_inputs,
    text_outputs,
)
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import append_id, bits, maximum, row_lengths
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
    check_kind(model, "A SavedModel", (SequenceToSequence,))
    check_tokenizer("tokenizer", tokenizer, model.vocabulary_size)
    check_tokenizer("source_tokenizer", source_tokenizer, model.source_vocabulary_size)
    checks.check_switch("append_end", append_end)
    checks.check_switch("jit_compile", jit_compile)
    tokenizers = [tokenizer, source_tokenizer]
    sources = _Sources(source_tokenizer, append_end, model.encoder.max_length or MAX_TOKENS)
    names = " and ".join(dict.fromkeys(f"`{type(each).__name__}`" for each in tokenizers))
    return write_saved_model(
        path,
        model,
        {
            "generate": _generate(model, tokenizer, sources, jit_compile),
            "score": _score(model, tokenizer, sources),
        },
        title="An encoder-decoder",
        description=f"A vocabulary of {model.vocabulary_size} ids of {names}.",
        tokenizers=tokenizers,
        weight_dtype=weight_dtype,
    )


class _Sources:
    """Encoder inputs from source texts, padded to one of a few lengths."""

    def __init__(self, tokenizer: Tokenizer, append_end: bool, max_length: int) -> None:
        self.tokenizer, self.append_end, self.max_length = tokenizer, append_end, max_length
        meaning = f"source, bytes, of at most {max_length} tokens"
        self.input = Input.strings("text", meaning, "A line of text.")

    def read(self, text: Tensor, num_rows: Tensor) -> dict[str, Tensor]:
        """Return the encoder inputs: ids, int32 (num_rows, S), and padding mask, bool (num_rows, S)."""
        ids = self.tokenizer.tokenize(text)
        ids = append_id(ids, self.tokenizer.end_id) if self.append_end else ids
        lengths = row_lengths(ids)
        is_valid = (lengths > 0) & (lengths <= self.max_length)
        message = f"`text` must have 1 to {self.max_length} tokens per row."
        with tf.control_dependencies(assert_all([(tf.reduce_all(is_valid), message, lengths)])):
            size = bucket(maximum(lengths), MIN_LENGTH, self.max_length)
        rows = [[0, num_rows - tf.size(text)]]
        mask = tf.range(size) < tf.pad(lengths, rows)[:, None]
        padded = tf.pad(ids.to_tensor(shape=tf.stack([-1, size])), [*rows, [0, 0]])
        # Padding rows attend to one token, so that no row of the mask is all False.
        return {"encoder_token_ids": tf.cast(padded, tf.int32), "encoder_padding_mask": mask | (tf.range(size) == 0)}


def _generate(model, tokenizer, sources, jit_compile):
    ids = tokenizer.vocabulary_size, (tokenizer.end_id,), tokenizer.start_id
    loop = SamplingLoop(model.decoder, *ids, jit_compile, encode=lambda source: model.encode(source, training=False))

    def generate(text, max_length, temperature, top_p, seed):
        lengths = tf.zeros_like(text, tf.int32)  # no prompts
        assertions = assert_max_length(max_length, lengths, loop.max_length)
        assertions += assert_settings("text", tf.size(text), temperature, top_p)
        settings = temperature, top_p, seed
        rows = loop(
            tf.zeros((tf.size(text), 1), tf.int32),
            lengths,
            max_length,
            settings,
            assertions,
            lambda num_rows: sources.read(text, num_rows),
        )
        return text_outputs(tokenizer, rows)

    inputs = [
        sources.input,
        Input.scalar("max_length", tf.int32, f"maximum number of tokens of a target, at most {loop.max_length}", 60),
        *setting_inputs("texts", temperature=0.0, top_p=1.0),
    ]
    outputs = {
        "text": "target, valid UTF-8 with U+FFFD for invalid bytes",
        "text_bytes": "target as bytes, valid UTF-8 or not",
        "num_tokens": "tokens of the target",
        "log_prob": "log-probability of the target and its end id, in nats",
    }
    return Signature(generate, inputs, outputs, "generated targets", COMPILATION_NOTE)


def _score(model, tokenizer, sources):
    num_positions = model.decoder.backbone.max_length

    def score(text, target):
        with tf.control_dependencies(assert_same_rows(("text", "target"), text, target)):
            ids = append_id(tokenizer.tokenize(target), tokenizer.end_id)
        lengths = row_lengths(ids)
        message = f"`target` must have at most {num_positions} tokens with its end id."
        fits = [] if num_positions is None else assert_all([(maximum(lengths) <= num_positions, message, lengths)])
        with tf.control_dependencies(fits):
            targets = tf.cast(ids.to_tensor(), tf.int32)
        is_token = tf.range(tf.shape(targets)[1]) < lengths[:, None]
        inputs = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        decoder_inputs = {"decoder_token_ids": tf.where(is_token, inputs, 0), "decoder_padding_mask": is_token}
        logits = model({**sources.read(text, tf.size(text)), **decoder_inputs}, training=False)
        nats = tf.reduce_sum(tf.where(is_token, nats_of(targets, logits), 0), axis=1)
        num_bytes = tf.strings.length(target, unit="BYTE")
        return {"bits_per_byte": bits(nats, num_bytes), "nats": nats, "num_bytes": num_bytes, "num_tokens": lengths}

    outputs = {
        "nats": "negative log-probability of the target and its end id, given the source",
        "num_bytes": "bytes of the target",
        "num_tokens": "number of tokens of the target, including the end id",
        "bits_per_byte": "nats / ln 2 / num_bytes; 0 for an empty target",
    }
    inputs = [sources.input, Input.strings("target", "target, bytes", "Another one.")]
    return Signature(score, inputs, outputs, "log-likelihood of targets, given sources")
