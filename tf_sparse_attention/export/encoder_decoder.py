"""SavedModels of encoder-decoders: a text in, the text that a model writes of it out."""

import math
import os
import pathlib
from typing import Any

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data.tokenizers.tokenizer import Tokenizer
from tf_sparse_attention.export.input_checks import check_kind
from tf_sparse_attention.export.language_model import check_tokenizer, checked_path, write_module
from tf_sparse_attention.export.readme import make_source_readme
from tf_sparse_attention.export.sampling_loop import (
    MAX_ROWS,
    MAX_TOKENS,
    SETTINGS,
    assertions,
    bucket,
    max_tokens_of,
    outputs,
    strings,
)
from tf_sparse_attention.export.texts import with_end
from tf_sparse_attention.export.weights import Weights
from tf_sparse_attention.generation import generate, row_keys, sample
from tf_sparse_attention.models import SequenceToSequence
from tf_sparse_attention.models.metrics import nats_of
from tf_sparse_attention.models.steps import limit_vocabulary, make_decoder
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
    """Writes a SavedModel of an encoder-decoder with the signatures `generate` and `score`: text in, text out.

    It runs as one of `export_saved_model` does, without this library, and has a README.md with an example.

    - `generate`: text, string (B,), max_length (tokens of a target), temperature (0: the most likely token each time),
      top_p and seed, scalars -> text and text_bytes, string (B,), what the model writes of each, in `text` as valid
      UTF-8; num_tokens, int32 (B,), of it, and log_prob, float32 (B,). Encoder and loop are compiled by XLA for each of
      a few sizes (`bucket_length`) on first use.
    - `score`: text and target, string (B,) -> nats and bits_per_byte, float32 (B,), of the target with its end given
      the text; num_bytes and num_tokens, int32 (B,). All rows are computed at once.

    Args:
        model: `SequenceToSequence`, on the TensorFlow backend, whose encoder reads token ids.
        path: folder to write, see `export_saved_model`.
        tokenizer: of the targets, the one the model was trained with.
        source_tokenizer: of the sources. None (default): `tokenizer`.
        append_end: whether sources are read with the end id of their tokenizer after them, as `pack_pairs` and the
            trainer have them. Default True.
        jit_compile, weight_dtype: see `export_saved_model`.

    Returns:
        The path, a `pathlib.Path`.

    Raises:
        ValueError: On another backend, or if the model, a tokenizer or the path is not suitable.

    Example:
        >>> export_sequence_to_sequence(model, "translator", ByteTokenizer())
        >>> served = tf.saved_model.load("translator").signatures["generate"]
        >>> settings = {"max_length": 100, "temperature": 0.0, "top_p": 1.0, "seed": 0}
        >>> served(text=tf.constant(["Guten Tag"]), **{name: tf.constant(x) for name, x in settings.items()})["text"]
    """
    source_tokenizer = tokenizer if source_tokenizer is None else source_tokenizer
    check_kind(model, "A SavedModel", SequenceToSequence)
    check_tokenizer("tokenizer", tokenizer, model.vocabulary_size)
    check_tokenizer("source_tokenizer", source_tokenizer, model.source_vocabulary_size)
    checks.check_switch("append_end", append_end)
    checks.check_switch("jit_compile", jit_compile)
    checks.check_choice("weight_dtype", weight_dtype, (None, "int8"))
    folder = checked_path(path)
    served = tf.Module(name="sequence_to_sequence")
    served.weights = weights = Weights(model, weight_dtype)
    served.tokenizer, served.source_tokenizer = tokenizer.trackable, source_tokenizer.trackable
    sources = _Sources(source_tokenizer, append_end, model.encoder.max_length or MAX_TOKENS)
    served.generate = _generate_function(model, tokenizer, sources, weights, jit_compile)
    served.score = _score_function(model, tokenizer, sources, weights)
    readme = make_source_readme(model, (tokenizer, source_tokenizer), weights, folder.name)
    write_module(served, folder, ("generate", "score"), readme)
    return folder


class _Sources:
    """From texts to what an encoder reads, padded to one of a few lengths."""

    def __init__(self, tokenizer: Tokenizer, append_end: bool, max_tokens: int) -> None:
        self.tokenizer, self.append_end, self.max_tokens = tokenizer, append_end, max_tokens

    def read(self, text: Tensor, num_rows: Tensor) -> dict[str, Tensor]:
        """Returns the inputs of the encoder, ids and mask (num_rows, S)."""
        ids = self.tokenizer.tokenize(text)
        ids = with_end(ids, self.tokenizer.end_id) if self.append_end else ids
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        longest, shortest = (reduce(tf.concat([lengths, [1]], axis=0)) for reduce in (tf.reduce_max, tf.reduce_min))
        message = f"`text` must have 1 to {self.max_tokens} tokens each. Received:"
        right = (longest <= self.max_tokens) & (shortest > 0)
        with tf.control_dependencies([tf.debugging.Assert(right, [message, lengths])]):
            size = bucket(longest, 64, self.max_tokens)
        rows = [[0, num_rows - tf.size(text)]]
        mask = tf.range(size) < tf.pad(lengths, rows)[:, None]
        padded = tf.pad(ids.to_tensor(shape=tf.stack([-1, size])), [*rows, [0, 0]])
        # A row that only fills the batch reads one token: nothing is asked of it.
        return {"encoder_token_ids": tf.cast(padded, tf.int32), "encoder_padding_mask": mask | (tf.range(size) == 0)}


def _generate_function(model, tokenizer, sources, weights, jit_compile):
    max_tokens = max_tokens_of(model)
    loop = _loop(model, tokenizer, weights, jit_compile)

    def write(text, max_length, temperature, top_p, seed):
        no_prompt = tf.zeros_like(text, tf.int32)
        with tf.control_dependencies(assertions("text", no_prompt, max_length, temperature, top_p, max_tokens)):
            num_rows = bucket(tf.size(text), 1, MAX_ROWS)
        buffer = tf.zeros(tf.stack([num_rows, bucket(max_length, 64, max_tokens)]), tf.int32)
        limits = tf.where(tf.range(num_rows) < tf.size(text), max_length, 0)  # rows that fill the batch are finished
        rows = loop(sources.read(text, num_rows), buffer, limits, row_keys(seed, num_rows), temperature, top_p)
        return outputs(tokenizer, [x[: tf.size(text)] for x in rows])

    return tf.function(write, input_signature=[strings("text"), *SETTINGS], autograph=False)


def _loop(model, tokenizer, weights, jit_compile):
    """Returns the part without strings, compiled for the sizes of each call."""
    decoder = make_decoder(model.decoder)
    step = limit_vocabulary(decoder.step, tokenizer.vocabulary_size)

    def loop(source, buffer, limits, keys, temperature, top_p):
        def sampler(logits, keys):
            return sample(logits, keys, temperature, top_p=top_p)

        none, stop_token_ids = tf.zeros_like(limits), (tokenizer.end_id,)
        with weights.scope():
            encoded = model.encode(source, training=False)
            state = decoder.start(buffer[:, :1], none, tf.shape(buffer)[1], encoded)
            rows = generate(step, buffer, none, limits, sampler, keys, stop_token_ids, tokenizer.start_id, state)
        return rows.token_ids, rows.lengths, tf.reduce_sum(rows.log_probs, axis=1)

    return tf.function(loop, jit_compile=jit_compile, autograph=False)


def _score_function(model, tokenizer, sources, weights):
    def score(text, target):
        same = tf.debugging.Assert(
            tf.size(text) == tf.size(target),
            ["`text` and `target` must have as many rows. Received:", tf.size(text), tf.size(target)],
        )
        with tf.control_dependencies([same]):
            ids = with_end(tokenizer.tokenize(target), tokenizer.end_id)
        lengths, targets = tf.cast(ids.row_lengths(), tf.int32), tf.cast(ids.to_tensor(), tf.int32)
        is_real = tf.range(tf.shape(targets)[1]) < lengths[:, None]
        before = tf.pad(targets[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        inputs: dict[str, Any] = {"decoder_token_ids": tf.where(is_real, before, 0), "decoder_padding_mask": is_real}
        with weights.scope():
            logits = model({**sources.read(text, tf.size(text)), **inputs}, training=False)
        nats = tf.reduce_sum(tf.where(is_real, nats_of(targets, logits), 0), axis=1)
        num_bytes = tf.strings.length(target, unit="BYTE")
        return {
            "bits_per_byte": tf.math.divide_no_nan(nats, math.log(2) * tf.cast(num_bytes, nats.dtype)),
            "nats": nats,
            "num_bytes": num_bytes,
            "num_tokens": lengths,
        }

    return tf.function(score, input_signature=[strings("text"), strings("target")], autograph=False)
