"""SavedModels of language models and encoder-decoders: text in; likelihoods, texts and embeddings out."""

import functools
import os
import pathlib

import tensorflow as tf

from tf_sparse_attention import checks
from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.input_checks import (
    check_codec,
    check_kind,
    check_language_model,
    check_length,
    require,
    same_rows,
)
from tf_sparse_attention.export.sampling_loop import MAX_TOKENS, MIN_LENGTH, Prompts, SamplingLoop, bucket
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import (
    append_end,
    bits,
    maximum,
    row_lengths,
    sum_nats,
    sum_over_windows,
)
from tf_sparse_attention.models import LanguageModel, SequenceToSequence
from tf_sparse_attention.models.metrics import nats_of
from tf_sparse_attention.types import Tensor

TEXT = Input.strings("text", "bytes, valid UTF-8 or not, of any length", "def main():", "A line of text.")


def export_language_model(
    model: LanguageModel,
    path: str | os.PathLike,
    tokenizer: Tokenizer,
    sequence_length: int = 1024,
    batch_size: int = 8,
    jit_compile: bool = True,
    weight_dtype: str | None = None,
) -> pathlib.Path:
    """Write a SavedModel of a language model with the signatures `score`, `generate` and `embed`.

    The SavedModel needs only TensorFlow. SentencePiece and WordPiece also need tensorflow-text. A README.md inside
    describes all inputs and outputs, with an example.

    - `score`: text, string (B,) -> bits_per_byte and nats, float32 (B,), num_bytes and num_tokens, int32 (B,). Texts
      are not truncated: a text of more than `sequence_length` tokens is split into consecutive windows. As in
      `tf_sparse_attention.data.evaluation_batches`, each window starts without context. The end of the document is not
      scored, since a text may be part of a document. Empty text has 0 nats and 0 bits per byte.
    - `generate`: prompt, string (B,), and the scalars max_length (tokens per row, including the prompt), temperature
      (0: always the most likely token), top_p and seed -> text and text_bytes, string (B,): each prompt with its
      continuation up to the end of the document. `text` is valid UTF-8, with U+FFFD for invalid bytes; `text_bytes` has
      the bytes. num_tokens, int32 (B,), counts prompt and continuation; log_prob, float32 (B,), is that of the
      continuation. With a fixed seed, row i does not depend on the batch and is the same as in
      `LanguageModel.generate`. A prompt of more than `max_length` tokens and settings out of range are errors.
    - `embed`: text, string (B,) -> embedding, float32 (B, D), the mean of the backbone's output vectors over the
      tokens, 0 for empty text; num_tokens, int32 (B,). Long texts are split into windows, as for `score`.

    Texts and prompts are bytes, valid UTF-8 or not. `generate` pads its inputs to one of a few sizes (`bucket_length`),
    and XLA compiles each size on first use, which takes some seconds.

    Args:
        model: `LanguageModel`, on the TensorFlow backend.
        path: folder to write, see `write_saved_model`.
        tokenizer: the tokenizer that the model was trained with. Only its ids are sampled.
        sequence_length: maximum number of tokens in a window of `score`. Use the training length. Default: 1024.
        batch_size: maximum number of windows that `score` and `embed` compute at once. Default: 8.
        jit_compile: whether XLA compiles the loop of `generate`; False for servers without XLA. Default: True.
        weight_dtype: "int8" quantizes large weights to 8 bits with a scale per row or column: about a quarter of the
            size, and slightly different results. Computation is in the model's dtype. Default: None, no quantization.

    Raises:
        ValueError: On another backend, or if the model, tokenizer or path is not supported.

    Example:
        >>> export_language_model(model, "saved_model", ByteTokenizer(), sequence_length=1024)
        >>> served = tf.saved_model.load("saved_model").signatures
        >>> served["score"](text=tf.constant(["def main():"]))["bits_per_byte"]
    """
    check_language_model(model)
    backbone = model.backbone
    check_codec("tokenizer", tokenizer, Tokenizer, backbone.vocabulary_size)
    check_length("sequence_length", sequence_length, backbone.max_length)
    signatures = {
        "score": _score_texts(model, tokenizer, sequence_length, batch_size),
        "generate": _continue_prompts(model, tokenizer, jit_compile),
        "embed": _embed(model, tokenizer, sequence_length, batch_size),
    }
    description = f"{backbone.num_layers} blocks, {backbone.vocabulary_size} ids of `{type(tokenizer).__name__}`."
    return write_saved_model(path, model, signatures, "A language model", description, [tokenizer], weight_dtype)


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

    - `generate`: text, string (B,), and the scalars max_length (maximum number of target tokens), temperature (0:
      always the most likely token), top_p and seed -> text (valid UTF-8) and text_bytes, string (B,), the target of
      each source; num_tokens, int32 (B,), and log_prob, float32 (B,), of the target. Sources and targets are padded to
      one of a few sizes (`bucket_length`), and XLA compiles each size on first use.
    - `score`: text and target, string (B,) -> nats and bits_per_byte, float32 (B,), of the target and its end id, given
      the source; num_bytes and num_tokens, int32 (B,). All rows are computed in one batch.

    Args:
        model: `SequenceToSequence`, on the TensorFlow backend, whose encoder reads token ids.
        path, jit_compile, weight_dtype: see `export_language_model`.
        tokenizer: tokenizer of the targets, as in training.
        source_tokenizer: tokenizer of the sources. None (default): `tokenizer`.
        append_end: whether to append the end id to each source, as `pack_pairs` and the trainer do. Default: True.

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
    signatures = {
        "generate": _generate_targets(model, tokenizer, sources, read_source, jit_compile),
        "score": _score_targets(model, tokenizer, sources, read_source),
    }
    description = f"A vocabulary of {model.vocabulary_size} ids of {names}."
    return write_saved_model(path, model, signatures, "An encoder-decoder", description, tokenizers, weight_dtype)


def _score_texts(model, tokenizer, sequence_length, batch_size):
    def score(text):
        ids = tokenizer.tokenize(text)
        nats = sum_nats(model, tokenizer.start_id, ids, sequence_length, batch_size)
        num_bytes = tf.strings.length(text, unit="BYTE")
        return {
            "bits_per_byte": bits(nats, num_bytes),
            "nats": tf.cast(nats, tf.float32),
            "num_bytes": num_bytes,
            "num_tokens": row_lengths(ids),
        }

    outputs = {
        "nats": "negative log-probability of the text",
        "num_bytes": "bytes of the text",
        "num_tokens": "tokens of the text",
        "bits_per_byte": "nats / ln 2 / num_bytes; 0 for an empty text",
    }
    notes = (
        f"Longer texts are scored in consecutive windows of {sequence_length} tokens. Each window starts without\n"
        "context. The end of the document is not scored."
    )
    return Signature(score, [TEXT], outputs, "log-likelihood of texts", notes)


def _continue_prompts(model, tokenizer, jit_compile):
    loop = SamplingLoop(model, tokenizer, jit_compile, (tokenizer.end_id,))

    def read(prompt, max_length):
        ids = tokenizer.tokenize(prompt)
        return Prompts(ids, row_lengths(ids), max_length)

    length = f"tokens per row, including the prompt, from the longest prompt to {loop.max_length}"
    inputs = [
        Input.strings("prompt", "bytes; an empty prompt starts a document", "def main():", ""),
        Input.scalar("max_length", tf.int32, length, 60),
    ]
    notes = "A row ends with the document or at `max_length`."
    texts = ("continuations of prompts", "prompt and continuation", "continuation")
    return _generate_text(loop, tokenizer, inputs, read, *texts, temperature=0.8, top_p=0.95, notes=notes)


def _embed(model, tokenizer, sequence_length, batch_size):
    backbone = model.backbone
    if backbone.max_length is not None:
        sequence_length = min(sequence_length, backbone.max_length - 1)  # one position is for the start id

    def sum_vectors(tokens, is_token):
        # The start id shifts the inputs by one position: the vector at each token depends on this and earlier tokens.
        inputs = tf.pad(tokens, [[0, 0], [1, 0]], constant_values=tokenizer.start_id)
        mask = tf.pad(is_token, [[0, 0], [1, 0]], constant_values=True)
        vectors = backbone({"token_ids": inputs, "padding_mask": mask}, training=False)[:, 1:]
        return tf.reduce_sum(tf.where(is_token[..., None], tf.cast(vectors, tf.float64), 0), axis=1)

    def embed(text):
        ids = tokenizer.tokenize(text)
        sums = sum_over_windows(ids, sequence_length, batch_size, sum_vectors, (backbone.hidden_dim,))
        num_tokens = row_lengths(ids)
        embedding = tf.math.divide_no_nan(sums, tf.cast(num_tokens, tf.float64)[:, None])
        return {"embedding": tf.cast(embedding, tf.float32), "num_tokens": num_tokens}

    outputs = {
        "embedding": "mean over the tokens of the backbone's output vectors; 0 for an empty text",
        "num_tokens": "tokens of the text",
    }
    notes = f"Longer texts are embedded in consecutive windows of {sequence_length} tokens."
    return Signature(embed, [TEXT], outputs, "embeddings of texts", notes)


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


def _generate_targets(model, tokenizer, sources, read_source, jit_compile):
    def encode(source):
        return model.encode(source, training=False)

    loop = SamplingLoop(model.decoder, tokenizer, jit_compile, (tokenizer.end_id,), encode=encode)

    def read(text, max_length):
        no_prompts = tf.zeros((tf.size(text), 1), tf.int32)
        return Prompts(no_prompts, no_prompts[:, 0], max_length, read_source=functools.partial(read_source, text))

    length = f"maximum number of tokens of a target, at most {loop.max_length}"
    inputs = [sources, Input.scalar("max_length", tf.int32, length, 60)]
    return _generate_text(loop, tokenizer, inputs, read, "generated targets", "target", "target", temperature=0.0)


def _generate_text(loop, tokenizer, inputs, read, summary, row, sampled, **settings):
    """Return the signature `generate` of text. `row` and `sampled` name the whole row and its sampled part."""

    def write(ids, num_tokens, log_prob):
        text = tokenizer.detokenize(ids)
        utf8 = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
        return {"text": utf8, "text_bytes": text, "num_tokens": num_tokens, "log_prob": log_prob}

    outputs = {
        "text": f"{row}, valid UTF-8 with U+FFFD for invalid bytes",
        "text_bytes": f"{row}, as bytes",
        "num_tokens": f"tokens of {row}",
        "log_prob": f"log-probability of the {sampled} and its end id, in nats",
    }
    return loop.signature(summary, inputs, read, outputs, write, "texts", **settings)


def _score_targets(model, tokenizer, sources, read_source):
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
