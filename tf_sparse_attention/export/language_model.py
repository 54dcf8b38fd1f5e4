"""SavedModels of language models: text in; likelihoods, continuations and embeddings out."""

import functools
import os
import pathlib

import tensorflow as tf

from tf_sparse_attention.data import Tokenizer
from tf_sparse_attention.export.input_checks import check_codec, check_language_model, check_length
from tf_sparse_attention.export.sampling_loop import Prompts, SamplingLoop, text_outputs
from tf_sparse_attention.export.saved_model import Input, Signature, write_saved_model
from tf_sparse_attention.export.token_rows import bits, row_lengths, sum_nats, sum_over_windows
from tf_sparse_attention.models import LanguageModel

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

    Returns:
        The path, a `pathlib.Path`.

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
    return write_saved_model(
        path,
        model,
        {
            "score": _score(model, tokenizer, sequence_length, batch_size),
            "generate": _generate(model, tokenizer, jit_compile),
            "embed": _embed(model, tokenizer, sequence_length, batch_size),
        },
        title="A language model",
        description=f"{backbone.num_layers} blocks, {backbone.vocabulary_size} ids of `{type(tokenizer).__name__}`.",
        tokenizers=[tokenizer],
        weight_dtype=weight_dtype,
    )


def _score(model, tokenizer, sequence_length, batch_size):
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


def _generate(model, tokenizer, jit_compile):
    loop = SamplingLoop(model, tokenizer, jit_compile, (tokenizer.end_id,))

    def read(prompt, max_length):
        ids = tokenizer.tokenize(prompt)
        return Prompts(ids, row_lengths(ids), max_length)

    length = f"tokens per row, including the prompt, from the longest prompt to {loop.max_length}"
    inputs = [
        Input.strings("prompt", "bytes; an empty prompt starts a document", "def main():", ""),
        Input.scalar("max_length", tf.int32, length, 60),
    ]
    outputs = {
        "text": "prompt and continuation, valid UTF-8 with U+FFFD for invalid bytes",
        "text_bytes": "prompt and continuation, as bytes",
        "num_tokens": "tokens of prompt and continuation",
        "log_prob": "log-probability of the continuation and its end id, in nats",
    }
    return loop.signature(
        "continuations of prompts",
        inputs,
        read,
        outputs,
        functools.partial(text_outputs, tokenizer),
        rows="texts",
        temperature=0.8,
        top_p=0.95,
        notes="A row ends with the document or at `max_length`.",
    )


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
